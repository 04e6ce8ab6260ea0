// oneDNN's INT8 matmul as a peer of scaledmm bench: the protocol of README.md. Builds against oneDNN 2 and 3.
//   y[m, n] = sx sw[n] sum over k of q[m, k] w[n, k]     q, w s8; y f32
// Weights are reordered once into the form that the primitive asks for; x is quantized outside the clock, with one
// scale.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using nlohmann::json;
using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

template <class T>
std::vector<T> read_file(const std::string& path, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
  if (!file) throw std::runtime_error("cannot read " + path);
  return values;
}

void fill(const dnnl::memory& memory, const void* bytes) {
  auto* mapped = memory.map_data<std::uint8_t>();
  std::copy_n(static_cast<const std::uint8_t*>(bytes), memory.get_desc().get_size(), mapped);
  memory.unmap_data(mapped);
}

// A matmul of M rows with a scale of x that is fixed.
struct Product {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
};

class Peer {
 public:
  json hello(const json& request) {
    omp_set_num_threads(request.at("threads").get<int>());
    const dnnl_version_t* version = dnnl_version();
    return {{"library", "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
                            std::to_string(version->patch)},
            {"ways", {{{"name", kName}, {"what", "gemm"}, {"schemes", {"int8"}}}}}};
  }

  json layer(const json& request) {
    n_ = request.at("n");
    k_ = request.at("k");
    codes_ = read_file<std::int8_t>(request.at("codes"), n_ * k_);
    scales_ = read_file<float>(request.at("scales"), n_);
    min_bytes_ = request.at("min_bytes");
    copies_.clear();
    return json::object();
  }

  json input(const json& request) {
    m_ = request.at("m");
    const std::vector<float> x = read_file<float>(request.at("x"), m_ * k_);
    float largest = 0;
    for (const float value : x) largest = std::max(largest, std::abs(value));
    x_scale_ = largest / 127;
    std::vector<std::int8_t> codes;
    for (const float value : x) codes.push_back(static_cast<std::int8_t>(std::nearbyint(value / x_scale_)));
    make_product();
    x_ = dnnl::memory({{m_, k_}, Type::s8, Tag::ab}, engine_);
    fill(x_, codes.data());
    y_ = dnnl::memory({{m_, n_}, Type::f32, Tag::ab}, engine_);
    return json::object();
  }

  json run(const json& request) {
    call();
    json us = json::array();
    for (int i = 0; i < request.at("calls").get<int>(); ++i) us.push_back(call());
    return {{"us", us}};
  }

  json output(const json& request) {
    auto* y = y_.map_data<char>();
    std::ofstream file(request.at("y").get<std::string>(), std::ios::binary);
    file.write(y, m_ * n_ * 4);
    y_.unmap_data(y);
    file.close();
    if (!file) throw std::runtime_error("cannot write " + request.at("y").get<std::string>());
    return json::object();
  }

 private:
  static constexpr const char* kName = "oneDNN matmul, s8 x s8, packed weights";

  void make_product() {
    const dnnl::memory::desc x({m_, k_}, Type::s8, Tag::ab), w({k_, n_}, Type::s8, Tag::any),
        y({m_, n_}, Type::f32, Tag::ab);
    dnnl::primitive_attr attributes;
#if DNNL_VERSION_MAJOR >= 3
    attributes.set_scales_mask(DNNL_ARG_SRC, 0);
    attributes.set_scales_mask(DNNL_ARG_WEIGHTS, 1 << 1);
    const dnnl::matmul::primitive_desc description(engine_, x, w, y, attributes);
    scale_memories_[DNNL_ARG_ATTR_SCALES | DNNL_ARG_SRC] = vector_memory({x_scale_});
    scale_memories_[DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS] = vector_memory(scales_);
#else
    std::vector<float> products;
    for (const float scale : scales_) products.push_back(scale * x_scale_);
    attributes.set_output_scales(1 << 1, products);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(x, w, y), attributes, engine_);
#endif
    product_ = Product{description, dnnl::matmul(description)};
    pack(description.weights_desc());
  }

  // As often as the caches cannot hold; kept while the next M wants the same form.
  void pack(const dnnl::memory::desc& wanted) {
    if (!copies_.empty() && copies_.front().get_desc() == wanted) return;
    copies_.clear();
    dnnl::memory plain({{k_, n_}, Type::s8, Tag::ba}, engine_);
    fill(plain, codes_.data());
    const std::int64_t count = std::max<std::int64_t>(1, (min_bytes_ + n_ * k_ - 1) / (n_ * k_));
    for (std::int64_t i = 0; i < count; ++i) {
      dnnl::memory& copy = copies_.emplace_back(wanted, engine_);
      dnnl::reorder(plain, copy).execute(stream_, plain, copy);
    }
    stream_.wait();
  }

#if DNNL_VERSION_MAJOR >= 3
  dnnl::memory vector_memory(const std::vector<float>& values) {
    dnnl::memory memory({{static_cast<std::int64_t>(values.size())}, Type::f32, Tag::a}, engine_);
    fill(memory, values.data());
    return memory;
  }
#endif

  double call() {
    std::unordered_map<int, dnnl::memory> arguments = scale_memories_;
    arguments[DNNL_ARG_SRC] = x_;
    arguments[DNNL_ARG_WEIGHTS] = copies_[turn_++ % copies_.size()];
    arguments[DNNL_ARG_DST] = y_;
    const auto start = std::chrono::steady_clock::now();
    product_->primitive.execute(stream_, arguments);
    stream_.wait();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::int64_t m_ = 0, n_ = 0, k_ = 0, min_bytes_ = 0;
  std::vector<std::int8_t> codes_;
  std::vector<float> scales_;
  float x_scale_ = 1;
  std::optional<Product> product_;
  std::unordered_map<int, dnnl::memory> scale_memories_;
  std::vector<dnnl::memory> copies_;
  std::size_t turn_ = 0;
  dnnl::memory x_, y_;
};

json answer(Peer& peer, const std::string& line) {
  try {
    const json request = json::parse(line);
    const std::string operation = request.at("op");
    if (operation == "hello") return peer.hello(request);
    if (operation == "layer") return peer.layer(request);
    if (operation == "input") return peer.input(request);
    if (operation == "run") return peer.run(request);
    if (operation == "output") return peer.output(request);
    return {{"error", "unknown operation " + operation}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main() {
  Peer peer;
  for (std::string line; std::getline(std::cin, line);) std::cout << answer(peer, line).dump() << std::endl;
}
