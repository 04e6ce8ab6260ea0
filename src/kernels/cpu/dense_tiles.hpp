// What the bf16 kernels of dense layers bring, and how their operands lie.
//   weights [panel][K / 2][16][2]: 32 k of a panel are the 16 rows of one AMX tile
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/cpu/fp8_rows.hpp"
#include "scaledmm/device.hpp"
#include "scaledmm/dtype.hpp"

namespace scaledmm::dense {

inline constexpr std::int64_t kPanelColumns = 16;
inline constexpr std::int64_t kStep = 32;  // K is padded to it with zeros
inline constexpr std::int64_t kMostBlockRows = 192;

// One row of x, K elements, or a row of zeros when `x` is a null pointer. A kernel may prepare it as several rows, its
// parts, the sums of which are added up at the end.
struct RowCall {
  const void* x = nullptr;
  DType dtype = DType::kF32;
  std::int64_t k = 0;
  std::int64_t padded_k = 0;
  std::int64_t row = 0;
  std::byte* prepared = nullptr;  // of all rows
};

// Some prepared rows times one or more panels over a part of K.
struct TileCall {
  const std::byte* x = nullptr;  // prepared, of all rows
  std::int64_t padded_k = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t k = 0;                      // the first
  std::int64_t count = 0;                  // both multiples of kStep
  const std::uint16_t* weights = nullptr;  // of the first panel, all of K
  float* sums = nullptr;                   // [panel][row][16]
  std::int64_t panel_sums = 0;             // floats from panel to panel
  bool adds = false;                       // to the sums in memory
  bool streams = false;                    // the weights are read once, from memory

  const std::uint16_t* panel(std::int64_t p) const { return weights + (p * padded_k + k) * kPanelColumns; }
};

struct Kernel {
  std::string_view name;
  bool (*runs_on)(const CpuFeatures& cpu) = nullptr;
  std::int64_t row_unit = 1;   // prepared rows and sums come in multiples of this
  std::int64_t tile_rows = 1;  // most prepared rows of a tile
  // How a call of more than one tile is cut. The prepared rows of a block over a chunk of K stay in L2, and so do the
  // panels of a group.
  std::int64_t block_rows = kMostBlockRows;  // of x, at most; with any parts a multiple of row_unit and tile_rows
  std::int64_t chunk = 512;                  // a multiple of kStep
  std::int64_t group_panels = 4;
  std::int64_t (*panels_at_once)(std::int64_t rows) = nullptr;  // 1, 2 or 4; fewer may come at the end
  std::int64_t (*row_bytes)(std::int64_t padded_k) = nullptr;   // of a prepared row
  std::int64_t (*parts)(DType x) = nullptr;                     // of a row; nullptr for 1
  void (*prepare)(const RowCall& call) = nullptr;
  void (*multiply)(std::int64_t panels, const TileCall& call) = nullptr;
  // sums [panel][row][part][16] become [panel][row][16], panels as far apart as before.
  void (*add_parts)(std::int64_t parts, std::int64_t panels, std::int64_t rows, float* sums,
                    std::int64_t panel_sums) = nullptr;
  void (*store)(const fp8::StoreCall& call) = nullptr;
  // Around a thread's calls of multiply; nullptr for nothing.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

}  // namespace scaledmm::dense

namespace scaledmm::native {
const dense::Kernel& bf16_amx();
const dense::Kernel& bf16_avx2();
const dense::Kernel& bf16_reference();
}  // namespace scaledmm::native
namespace scaledmm::emulated {
const dense::Kernel& bf16_amx();
}
