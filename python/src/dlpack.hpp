// The structures of DLPack 1.3 as the binding needs them. An ABI: layouts and codes are the standard's.
// Source: DLPack 1.3, dlpack.h; the Python protocol is that of the array API standard.
#pragma once

#include <cstdint>

namespace scaledmm::python {

enum : std::int32_t { kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3, kDlCudaManaged = 13 };

enum DlCode : std::uint8_t {
  kDlInt = 0,
  kDlUInt = 1,
  kDlFloat = 2,
  kDlBfloat = 4,
  kDlE4M3FN = 10,
  kDlE4M3FNUZ = 11,
  kDlE5M2 = 12,
  kDlE8M0 = 14,
};

inline constexpr std::uint64_t kDlReadOnly = 1;
inline constexpr std::uint64_t kDlIsCopied = 2;

struct DlDevice {
  std::int32_t type;
  std::int32_t id;
};

struct DlDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t rank;
  DlDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // elements; null: packed
  std::uint64_t byte_offset;
};

// What legacy capsules, named "dltensor", hold.
struct DlManagedTensor {
  DlTensor tensor;
  void* manager;
  void (*deleter)(DlManagedTensor* self);
};

struct DlVersion {
  std::uint32_t major;
  std::uint32_t minor;
};

inline constexpr DlVersion kDlVersion{1, 3};

// What capsules named "dltensor_versioned" hold.
struct DlManagedTensorVersioned {
  DlVersion version;
  void* manager;
  void (*deleter)(DlManagedTensorVersioned* self);
  std::uint64_t flags;
  DlTensor tensor;
};

// Function table of a tensor type: a capsule named "dlpack_exchange_api" in its attribute __dlpack_c_exchange_api__.
// Functions return 0, or -1 with a Python exception set.
struct DlExchangeApi {
  DlVersion version;
  DlExchangeApi* previous;  // an older table, or null
  int (*allocate)(DlTensor* prototype, DlManagedTensorVersioned** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, DlManagedTensorVersioned** out);
  int (*object_from_managed)(DlManagedTensorVersioned* tensor, void** object);
  int (*tensor_from_object)(void* object, DlTensor* out);  // borrows; may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

}  // namespace scaledmm::python
