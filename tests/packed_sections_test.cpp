// Packed weights taken apart into sections and adopted again, on every kernel that keeps them in files.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>

#include "exact.hpp"
#include "guarded_memory.hpp"
#include "kernel_fixture.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

// Copies of sections, as a mapped file has them: filled up to 64 bytes, nothing to read behind them.
class Copies {
 public:
  explicit Copies(const PackedWeights& packed) {
    for (const PackedSection& section : packed.sections()) {
      std::vector<std::byte> bytes(section.bytes.begin(), section.bytes.end());
      bytes.resize((bytes.size() + 63) / 64 * 64);
      const auto& memory = memories_.emplace_back(std::make_unique<GuardedMemory>(bytes));
      sections.push_back({section.name, {static_cast<const std::byte*>(memory->data()), section.bytes.size()}});
    }
  }

  std::vector<PackedSection> sections;

 private:
  std::vector<std::unique_ptr<GuardedMemory>> memories_;
};

class PackedSections : public KernelTest {
 protected:
  bool keeps_files() const { return !kernel().packed_layout().empty(); }
};

TEST_P(PackedSections, AreThereWhenTheKernelNamesTheirLayout) {
  for_each_scheme(33, 65, [&](const Scheme& scheme) {
    const Layer layer = make_layer(scheme, 33, 65).process(kernel(), context());
    EXPECT_EQ(layer.packed().sections().empty(), !keeps_files());
  });
  const bool is_reference = kernel().name() == "reference";
  EXPECT_EQ(keeps_files(), !is_reference);
}

TEST_P(PackedSections, GiveTheSameBitsAfterAdoption) {
  if (!keeps_files()) GTEST_SKIP() << kernel().name() << " keeps no packed weights in files";
  for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {33, 65}, {64, 256}, {129, 300}}) {
    for_each_scheme(n, k, [&, n = n, k = k](const Scheme& scheme) {
      const LayerData data = make_layer(scheme, n, k);
      const Layer packed = data.process(kernel(), context());
      const auto copies = std::make_shared<Copies>(packed.packed());
      LayerWeights weights = data.weights();
      weights.weight.data = nullptr;  // codes are not read
      Layer adopted(data.config, weights, "adopted");
      kernel().adopt_packed_weights(adopted, copies->sections, copies);
      EXPECT_EQ(adopted.kernel(), &kernel());
      for (const std::int64_t m : {1, 5, 33}) {
        const Matrix x = make_activation(DType::kBF16, m, k);
        const Matrix bias = make_bias(DType::kF32, n);
        EXPECT_EQ(first_difference(apply(kernel(), adopted, x, &bias, context()),
                                   apply(kernel(), packed, x, &bias, context())),
                  "")
            << "M " << m << " N " << n << " K " << k;
      }
      EXPECT_EQ(kernel().unpack(adopted), kernel().unpack(packed));
    });
  }
}

TEST_P(PackedSections, KeepTheirMemoryAsLongAsTheLayerLives) {
  if (!keeps_files()) GTEST_SKIP() << kernel().name() << " keeps no packed weights in files";
  for_each_scheme(33, 65, [&](const Scheme& scheme) {
    const LayerData data = make_layer(scheme, 33, 65);
    auto copies = std::make_shared<Copies>(data.process(kernel(), context()).packed());
    const std::weak_ptr<Copies> watched = copies;
    {
      Layer adopted(data.config, data.weights());
      kernel().adopt_packed_weights(adopted, copies->sections, copies);
      copies.reset();
      EXPECT_FALSE(watched.expired());
      adopted.refill(data.weights(), context());
      EXPECT_TRUE(watched.expired()) << "refilled layers own their memory";
    }
  });
}

TEST_P(PackedSections, OfAnotherSizeAreRefused) {
  if (!keeps_files()) GTEST_SKIP() << kernel().name() << " keeps no packed weights in files";
  for_each_scheme(48, 130, [&](const Scheme& scheme) {
    const LayerData data = make_layer(scheme, 48, 130);
    const Copies copies(data.process(kernel(), context()).packed());
    const auto refused = [&](std::vector<PackedSection> sections, const std::string& text) {
      Layer layer(data.config, data.weights());
      try {
        kernel().adopt_packed_weights(layer, sections, nullptr);
        ADD_FAILURE() << "taken, expected: " << text;
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
      }
      EXPECT_FALSE(layer.processed());
    };
    for (std::size_t i = 0; i < copies.sections.size(); ++i) {
      const std::string name(copies.sections[i].name);
      std::vector<PackedSection> sections = copies.sections;
      sections[i].bytes = sections[i].bytes.first(sections[i].bytes.size() - 1);
      refused(sections, "packed section " + name + " has ");
      sections = copies.sections;
      sections.erase(sections.begin() + static_cast<std::ptrdiff_t>(i));
      refused(sections, "packed section " + name + " is missing");
      std::vector<std::byte> shifted(copies.sections[i].bytes.size() + 64);
      const std::uintptr_t odd = (reinterpret_cast<std::uintptr_t>(shifted.data()) + 4) % 64 == 0 ? 8 : 4;
      sections = copies.sections;
      sections[i].bytes = std::span<const std::byte>(shifted).subspan(odd, copies.sections[i].bytes.size());
      refused(sections, "packed section " + name + " is not aligned to 64 bytes");
    }
    Layer layer = data.process(kernel(), context());
    EXPECT_THROW(kernel().adopt_packed_weights(layer, copies.sections, nullptr), InvalidArgument);
  });
}

INSTANTIATE_TEST_SUITE_P(Kernels, PackedSections, testing::ValuesIn(tested_kernels()), kernel_label);

// Copies of one kernel pack alike; kernels of other tiles say so.
TEST(PackedLayouts, AreThoseOfTheEmulatedCopy) {
  for (const LinearKernel* emulated : emulated_kernels()) {
    for (const LinearKernel* native : native_kernels()) {
      if (native->name() != emulated->name()) continue;
      EXPECT_EQ(native->packed_layout(), emulated->packed_layout());
    }
  }
  EXPECT_NE(native::int8_w8a8_avx2().packed_layout(), native::int8_w8a8_amx().packed_layout());
  EXPECT_NE(native::fp8_w8a16_avx2().packed_layout(), native::fp8_w8a16_amx().packed_layout());
}

}  // namespace
}  // namespace scaledmm
