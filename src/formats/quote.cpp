#include "formats/quote.hpp"

#include <cstddef>
#include <cstdint>

namespace scaledmm {
namespace {

constexpr std::size_t kMaxQuotedBytes = 200;

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Length of the UTF-8 sequence at the start of `text` (not empty) and its code point; 0 when it is not UTF-8.
std::size_t decode_utf8(std::string_view text, std::uint32_t& code_point) {
  const auto lead = static_cast<unsigned char>(text[0]);
  std::size_t length = 0;
  if (lead < 0x80) {
    length = 1;
    code_point = lead;
  } else if (lead >= 0xC2 && lead < 0xE0) {
    length = 2;
    code_point = lead & 0x1FU;
  } else if (lead >= 0xE0 && lead < 0xF0) {
    length = 3;
    code_point = lead & 0x0FU;
  } else if (lead >= 0xF0 && lead < 0xF5) {
    length = 4;
    code_point = lead & 0x07U;
  }
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[i])) return 0;
    code_point = code_point << 6 | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  const bool overlong = (length == 3 && code_point < 0x800) || (length == 4 && code_point < 0x10000);
  const bool surrogate = code_point >= 0xD800 && code_point < 0xE000;
  return overlong || surrogate || code_point > 0x10FFFF ? 0 : length;
}

void append_hex(std::string& out, std::uint32_t value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[value >> shift & 0xFU];
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    std::uint32_t code_point = 0;
    const std::size_t length = decode_utf8(text, code_point);
    if (length == 0) {
      out += "\\x";
      append_hex(out, static_cast<unsigned char>(text[0]), 2);
    } else if (code_point == '\n') {
      out += "\\n";
    } else if (code_point == '\t') {
      out += "\\t";
    } else if (code_point == '"' || code_point == '\\') {
      out += '\\';
      out += text[0];
    } else if (code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0)) {
      out += "\\u";
      append_hex(out, code_point, 4);
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string quote(std::string_view text) {
  if (text.size() <= kMaxQuotedBytes) return '"' + escape(text) + '"';
  std::size_t cut = kMaxQuotedBytes;
  while (cut > kMaxQuotedBytes - 3 && is_continuation(text[cut])) --cut;
  return '"' + escape(text.substr(0, cut)) + "...\" (" + std::to_string(text.size()) + " bytes)";
}

}  // namespace scaledmm
