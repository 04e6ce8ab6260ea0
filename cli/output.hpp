// What the subcommands print: aligned tables, JSON, and a progress line that only a terminal sees.
#pragma once

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace scaledmm::cli {

// Members keep the order in which they were added.
using Json = nlohmann::ordered_json;

// Text to standard output as it is: JSON, tables, and words of ours.
void print(std::string_view text);
// One line to standard output, printable(); what a file or a name says goes this way.
void print_line(std::string_view text);
// A line to standard error: "scaledmm: text", printable().
void note(std::string_view text);
// What takes the library's warnings: each is noted, and kept in `warnings`, which must outlive it.
std::function<void(const std::string&)> note_into(std::vector<std::string>& warnings);

// An indented document, or one object on one line. Bytes that are not UTF-8 are replaced.
void print_json(const Json& document);
void print_json_line(const Json& object);
std::string json_text(const Json& document);
std::string json_line(const Json& object);

// Control characters as \xNN and newlines as \n, so that a hostile name can neither drive the terminal nor pass for
// another line.
std::string printable(std::string_view text);
// Newlines become "; ": for the library's texts of several lines.
std::string one_line(std::string_view text);

// "17 layers", "1 layer"
std::string count_of(std::size_t count, std::string_view noun);
// "12.3 MB"
std::string megabytes(std::uint64_t bytes);

// Before any work: whether `written`, the file that `option` names, can be written, and is none that is read. Links
// count as what they lead to. Without a name there is nothing to check.
// Errors: UsageError, IoError.
void check_output(std::string_view option, const std::string& written,
                  const std::vector<std::filesystem::path>& read = {});
// The same for a folder to be made. Errors: InvalidArgument when it exists, IoError.
void check_output_folder(const std::string& made);

// Columns padded to their widest cell, cells printable(); a column is right-aligned where `right` has an 'r', as in
// "lrr".
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
