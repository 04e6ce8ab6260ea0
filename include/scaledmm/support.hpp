// The answer to "can you?": yes, or no with a reason.
#pragma once

#include <string>
#include <utility>

namespace scaledmm {

// Yes, or no with a reason: a lower-case clause that carries the value and the limit, without a full stop.
class Support {
 public:
  static Support yes() { return Support(true, {}); }
  static Support no(std::string reason) { return Support(false, std::move(reason)); }

  explicit operator bool() const { return ok_; }
  bool ok() const { return ok_; }
  const std::string& reason() const { return reason_; }

 private:
  Support(bool ok, std::string reason) : ok_(ok), reason_(std::move(reason)) {}
  bool ok_;
  std::string reason_;
};

}  // namespace scaledmm
