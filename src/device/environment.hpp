// Settings from the environment, read by device/ and registry/ only.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace scaledmm {

// Nothing when unset or empty.
inline std::optional<std::string> environment_variable(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

}  // namespace scaledmm
