// Golden vectors of tests/golden: floats come as the integers of their bit patterns.
#pragma once

#include <bit>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace scaledmm {

inline nlohmann::json golden(const std::string& name) {
  std::ifstream file(std::string(SCALEDMM_SOURCE_DIR) + "/tests/golden/" + name + ".json");
  return nlohmann::json::parse(file);
}

inline float golden_float(const nlohmann::json& bits) { return std::bit_cast<float>(bits.get<std::uint32_t>()); }

inline std::vector<float> golden_floats(const nlohmann::json& array) {
  std::vector<float> values;
  for (const auto& bits : array) values.push_back(golden_float(bits));
  return values;
}

}  // namespace scaledmm
