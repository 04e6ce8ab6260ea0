// What the subcommands print: aligned tables, JSON, and a progress line that only a terminal sees.
#pragma once

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace scaledmm::cli {

// Members keep the order in which they were added.
using Json = nlohmann::ordered_json;

// Text to standard output as it is.
void print(std::string_view text);
// A note to standard error: "scaledmm: text".
void note(std::string_view text);

// An indented document, or one object on one line. Bytes that are not UTF-8 are replaced.
void print_json(const Json& document);
void print_json_line(const Json& object);
std::string json_text(const Json& document);
std::string json_line(const Json& object);

// Control characters other than newlines as \xNN, so that a hostile name cannot drive the terminal.
std::string printable(std::string_view text);
// Newlines become "; ".
std::string one_line(std::string_view text);

// "17 layers", "1 layer"
std::string count_of(std::size_t count, std::string_view noun);
// "12.3 MB"
std::string megabytes(std::uint64_t bytes);

// Keeps `option`, a file to be written, from taking the place of one that is read. Links count as what they lead to.
// Errors: UsageError.
void check_not_read(std::string_view option, const std::string& written,
                    const std::vector<std::filesystem::path>& read);

// Columns padded to their widest cell; a column is right-aligned where `right` has an 'r', as in "lrr".
class Table {
 public:
  Table(std::vector<std::string> header, std::string alignment);
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  std::string text() const;

 private:
  std::vector<std::string> header_;
  std::string alignment_;
  std::vector<std::vector<std::string>> rows_;
};

// "[ 37/210] name", rewritten in place on standard error. Silent when that is not a terminal.
// While it lives, SIGINT, SIGTERM and SIGHUP are kept for the next update(), which throws Interrupted: what is half
// written is then taken away.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(std::size_t done, std::size_t total, std::string_view what);

 private:
  bool terminal_;
  bool drawn_ = false;
  std::array<struct sigaction, 3> before_;
};

}  // namespace scaledmm::cli
