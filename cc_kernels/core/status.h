// The outcome of a call into the core, which neither throws nor ends the process.
#ifndef TF_INTEROP_CORE_STATUS_H_
#define TF_INTEROP_CORE_STATUS_H_

#include <string>
#include <utility>

namespace tf_interop {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller asked for something that no backend could do
  kUnsupported,        // this backend, algorithm or device cannot do it; another may
  kResourceExhausted,  // out of memory
  kUnavailable,        // a library or device is missing
  kInternal,           // a call that should have worked did not
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // Keeps the first error.
  void Update(const Status& other) {
    if (ok()) *this = other;
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}
inline Status Unsupported(std::string message) {
  return Status(StatusCode::kUnsupported, std::move(message));
}
inline Status ResourceExhausted(std::string message) {
  return Status(StatusCode::kResourceExhausted, std::move(message));
}
inline Status Unavailable(std::string message) {
  return Status(StatusCode::kUnavailable, std::move(message));
}
inline Status Internal(std::string message) {
  return Status(StatusCode::kInternal, std::move(message));
}

// A lack of memory, or of a library that an engine needs, may pass. Other refusals last.
inline bool IsLasting(const Status& status) {
  return status.code() != StatusCode::kResourceExhausted &&
         status.code() != StatusCode::kUnavailable;
}

#define TF_INTEROP_RETURN_IF_ERROR(expression)               \
  do {                                                       \
    ::tf_interop::Status _tf_interop_status = (expression);  \
    if (!_tf_interop_status.ok()) return _tf_interop_status; \
  } while (false)

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_STATUS_H_
