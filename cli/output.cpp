#include "cli/output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <system_error>
#include <utility>

#include "cli/errors.hpp"
#include "formats/atomic_file.hpp"

namespace scaledmm::cli {

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_line(std::string_view text) { print(printable(text) + "\n"); }

void note(std::string_view text) { std::fprintf(stderr, "scaledmm: %s\n", printable(text).c_str()); }

std::function<void(const std::string&)> note_into(std::vector<std::string>& warnings) {
  return [&warnings](const std::string& text) {
    note(text);
    warnings.push_back(text);
  };
}

std::string json_text(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void print_json(const Json& document) { print(json_text(document)); }

std::string json_line(const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

void print_json_line(const Json& object) { print(json_line(object)); }

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (byte == 0xc2 && next >= 0x80 &&
               next < 0xa0) {  // U+0080 to U+009F, of which terminals take some as ESC [
      out += fmt::format("\\x{:02x}", next);
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

void check_output(std::string_view option, const std::string& written, const std::vector<std::filesystem::path>& read) {
  if (written.empty()) return;
  for (const std::filesystem::path& file : read) {
    std::error_code absent;
    if (std::filesystem::equivalent(file, written, absent)) {
      throw UsageError(fmt::format("{} {} is a file that is read", option, written));
    }
  }
  const AtomicFile trial(written);
}

void check_output_folder(const std::string& made) { const AtomicDirectory trial(made); }

std::string one_line(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "; ";
    } else {
      out += c;
    }
  }
  return out;
}

std::string count_of(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string megabytes(std::uint64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6); }

Table::Table(std::vector<std::string> header, std::string alignment)
    : header_(std::move(header)), alignment_(std::move(alignment)) {}

void Table::add(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const std::string& title : header_) widths.push_back(title.size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) out += "  ";
      out += alignment_[i] == 'r' ? fmt::format("{:>{}}", cells[i], widths[i])
                                  : fmt::format("{:<{}}", cells[i], widths[i]);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  };
  std::string out = line(header_);
  for (const auto& row : rows_) out += line(row);
  return out;
}

namespace {

constexpr std::array kStops = {SIGINT, SIGTERM, SIGHUP};
volatile std::sig_atomic_t stopped_by = 0;

}  // namespace

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) != 0) {
  struct sigaction keep = {};
  keep.sa_handler = [](int number) { stopped_by = number; };
  for (std::size_t i = 0; i < kStops.size(); ++i) {
    ::sigaction(kStops[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(kStops[i], &keep, nullptr);
  }
}

Progress::~Progress() {
  for (std::size_t i = 0; i < kStops.size(); ++i) ::sigaction(kStops[i], &before_[i], nullptr);
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void Progress::update(std::size_t done, std::size_t total, std::string_view what) {
  if (stopped_by != 0) throw Interrupted(stopped_by);
  if (!terminal_) return;
  const int digits = static_cast<int>(std::to_string(total).size());
  std::fprintf(stderr, "\r\x1b[K[%*zu/%zu] %s", digits, done, total, printable(what.substr(0, 100)).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace scaledmm::cli
