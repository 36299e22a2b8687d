// A timeline of the first calls of each op: what ran when, on which lane or thread. Times on a
// stream are by the device's clock, others by the host's.
//
// While nothing is recorded, a call costs a few loads.
#ifndef TF_INTEROP_CORE_TIMELINE_H_
#define TF_INTEROP_CORE_TIMELINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace tf_interop {

// A point in a stream. Thread-safe.
class TimeMark {
 public:
  virtual ~TimeMark() = default;
  // When the stream passed it, in nanoseconds of NowNs; empty before that, or if the device cannot
  // tell. Never waits.
  virtual std::optional<int64_t> ReadNs() const = 0;
};

// The host's clock.
int64_t NowNs();

class HostTimeMark : public TimeMark {
 public:
  void Pass() { ns_.store(NowNs(), std::memory_order_release); }
  std::optional<int64_t> ReadNs() const override;

 private:
  std::atomic<int64_t> ns_{0};
};

struct TimelineSpan {
  enum class Row {
    kStage,   // a whole stage, from its fork to its join
    kLane,    // a launch on a lane
    kThread,  // work of a host thread
  };
  Row row = Row::kThread;
  int number = 0;         // of the lane or thread
  std::string name;       // of the op, the convolutions, or the unit's operations
  std::string algorithm;  // or how a unit runs; may be empty
  std::shared_ptr<const TimeMark> begin, end;
};

// From now on records calls 1 to `calls` of each op, up to 200,000 spans. Omits call 0, in which an
// op prepares its work.
void RecordTimeline(int calls);

// Passes the spans that have ended to `give`.
void ReadTimeline(
    const std::function<void(const std::string& op, int call, const TimelineSpan& span,
                             int64_t begin_ns, int64_t end_ns)>& give);

// Counts the calls of one op.
class TimelineCalls {
 public:
  // The number of this call, or -1 if it is not recorded.
  int Next();

 private:
  std::atomic<int> count_{0};
};

// A call of an op, on the thread that makes it. They nest.
class TimelineCall {
 public:
  TimelineCall(TimelineCalls* calls, std::string_view op);
  ~TimelineCall();
  TimelineCall(const TimelineCall&) = delete;
  TimelineCall& operator=(const TimelineCall&) = delete;

  // This thread's innermost call; null if there is none or it is not recorded.
  static const TimelineCall* Current();

  bool is_recorded() const { return number_ >= 0; }
  const std::string& op() const { return op_; }
  void Add(TimelineSpan span) const;

 private:
  const int number_;
  const std::string op_;  // empty if the call is not recorded
  const TimelineCall* const outer_;
};

// A span of this thread, for a call that outlives it and may be another thread's.
class ThreadSpan {
 public:
  // Calls `make_name`, which returns the name and the algorithm, only if the call is recorded.
  template <typename MakeName>
  ThreadSpan(const TimelineCall& call, const MakeName& make_name) {
    if (!call.is_recorded()) return;
    std::tie(name_, algorithm_) = make_name();
    Begin(call);
  }
  ~ThreadSpan();
  ThreadSpan(const ThreadSpan&) = delete;
  ThreadSpan& operator=(const ThreadSpan&) = delete;

 private:
  void Begin(const TimelineCall& call);

  const TimelineCall* call_ = nullptr;
  std::string name_, algorithm_;
  std::shared_ptr<HostTimeMark> begin_;
};

// ---- Labels of a lane's launches, for a profiler's trace. While nothing is recorded, a scope
// makes no label.

// Describes one launch.
struct TraceLabel {
  int lane = 0;
  std::string convolutions;  // the step's name, or those of merged steps joined by " + "
  std::string algorithm;     // empty if there is nothing to compute
};

// A profiler, set by the TensorFlow op, because the core knows none. Thread-safe.
struct Tracer {
  // Whether it is recording. Cheap, because every launch calls it.
  bool (*is_active)();
  // Begins a span of this thread, which ends with the object.
  std::shared_ptr<void> (*begin)(const TraceLabel& label);
};

// The tracer of the process; may be null. It must live as long as anything may run.
inline std::atomic<const Tracer*> process_tracer{nullptr};

// A span of its thread. Scopes of a thread nest.
class TraceScope {
 public:
  // Calls `make_label`, which returns a TraceLabel, only while the tracer records.
  template <typename MakeLabel>
  explicit TraceScope(const MakeLabel& make_label) {
    const Tracer* const tracer = process_tracer;
    if (tracer != nullptr && tracer->is_active()) span_ = tracer->begin(make_label());
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  std::shared_ptr<void> span_;  // null if nothing was recorded when the scope began
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_TIMELINE_H_
