// Labels of a lane's launches, for a profiler's trace.
//
// The TensorFlow op sets a tracer, because the core knows no profiler. While nothing is recorded, a
// scope costs a few loads and makes no label.
#ifndef TF_INTEROP_CORE_TRACE_H_
#define TF_INTEROP_CORE_TRACE_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

namespace tf_interop {

// Describes one launch.
struct TraceLabel {
  int lane = 0;
  std::string convolutions;  // the step's name, or those of merged steps joined by " + "
  std::string algorithm;     // empty if there is nothing to compute
};

// Thread-safe.
struct Tracer {
  // Whether it is recording. Cheap, because every launch calls it.
  bool (*is_active)();
  // Begins a span of this thread, which ends with the object.
  std::shared_ptr<void> (*begin)(const TraceLabel& label);
};

// The tracer of the process; may be null. It must live as long as anything may run.
inline std::atomic<const Tracer*> process_tracer{nullptr};

// The label of the thread's innermost scope, or null. Another thread traces this thread's work
// under the same label, as a profiler does with a GPU's kernels and their launch.
inline thread_local std::shared_ptr<const TraceLabel> current_trace_label;

// A span of its thread. Scopes of a thread nest.
class TraceScope {
 public:
  // Calls `make_label`, which returns a TraceLabel, only while the tracer records.
  template <typename MakeLabel>
  explicit TraceScope(const MakeLabel& make_label) {
    const Tracer* const tracer = process_tracer;
    if (tracer == nullptr || !tracer->is_active()) return;
    auto label = std::make_shared<const TraceLabel>(make_label());
    span_ = tracer->begin(*label);
    outer_ = std::exchange(current_trace_label, std::move(label));
  }
  ~TraceScope() {
    if (span_ != nullptr) current_trace_label = std::move(outer_);
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  std::shared_ptr<void> span_;  // null if nothing was recorded when the scope began
  std::shared_ptr<const TraceLabel> outer_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_TRACE_H_
