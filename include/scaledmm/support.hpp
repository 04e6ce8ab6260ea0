// The answer to "can you?": yes, no with a reason, or yes, but another is better.
#pragma once

#include <string>
#include <utility>

namespace scaledmm {

// Yes, or no with a reason: a lower-case clause that carries the value and the limit, without a full stop.
class Support {
 public:
  static Support yes() { return Support(true, {}, {}); }
  static Support no(std::string reason) { return Support(false, std::move(reason), {}); }
  // Yes, but where the kernel `better` can run too, it comes first.
  static Support yes_after(std::string better, std::string reason) {
    return Support(true, std::move(reason), std::move(better));
  }

  explicit operator bool() const { return ok_; }
  bool ok() const { return ok_; }
  const std::string& reason() const { return reason_; }
  const std::string& better() const { return better_; }  // a kernel's name; empty: none

 private:
  Support(bool ok, std::string reason, std::string better)
      : ok_(ok), reason_(std::move(reason)), better_(std::move(better)) {}
  bool ok_;
  std::string reason_;
  std::string better_;
};

}  // namespace scaledmm
