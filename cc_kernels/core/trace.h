// Names of what lanes run, for a profiler's trace.
//
// The core knows no profiler: whoever has one sets a Tracer, as the TensorFlow op does. Without
// one, or while it records nothing, a scope costs a few loads and its label is never made.
#ifndef TF_INTEROP_CORE_TRACE_H_
#define TF_INTEROP_CORE_TRACE_H_

#include <memory>
#include <string>

namespace tf_interop {

// What is launched on a lane in one go.
struct TraceLabel {
  int lane = 0;
  std::string convolutions;  // the step's name, or those that are merged with " + " between them
  std::string algorithm;     // empty where nothing is to be computed
};

// From its making until it goes, on one thread.
class TraceSpan {
 public:
  virtual ~TraceSpan() = default;
};

// Thread-safe.
class Tracer {
 public:
  virtual ~Tracer() = default;
  // Whether anything is recorded now. Cheap: every launch asks.
  virtual bool IsActive() const = 0;
  virtual std::unique_ptr<TraceSpan> Begin(const TraceLabel& label) = 0;
};

// For the whole process. `tracer` is not owned, and has to live as long as anything may run; null
// for none, as at first.
void SetTracer(Tracer* tracer);

// A span around what its thread does while it lives. Scopes of a thread nest.
class TraceScope {
 public:
  // `make_label` gives a TraceLabel; it is called only where something is recorded.
  template <typename MakeLabel>
  explicit TraceScope(const MakeLabel& make_label) {
    Tracer* const tracer = ActiveTracer();
    if (tracer != nullptr) Begin(tracer, make_label());
  }
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  static Tracer* ActiveTracer();
  void Begin(Tracer* tracer, TraceLabel label);

  std::unique_ptr<TraceSpan> span_;  // null where nothing was recorded when the scope began
  std::shared_ptr<const TraceLabel> outer_;
};

// The label of the thread's innermost scope, or null: work that is handed to another thread is
// traced there under the same label, as a GPU's kernels are under that of their launch.
std::shared_ptr<const TraceLabel> CurrentTraceLabel();

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_TRACE_H_
