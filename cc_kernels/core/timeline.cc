#include "cc_kernels/core/timeline.h"

#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

namespace tf_interop {
namespace {

constexpr size_t kMostSpans = 200'000;

struct Recorded {
  std::string op;
  int call;
  TimelineSpan span;
};

struct Timeline {
  std::mutex mutex;
  std::vector<Recorded> spans;  // guarded by mutex
};

// Never destroyed, because ops may run until the very end of the process.
Timeline& TheTimeline() {
  static auto* const timeline = new Timeline();
  return *timeline;
}

std::atomic<int> recorded_calls{0};

const TimelineCall*& CallOfThread() {
  static thread_local const TimelineCall* call = nullptr;
  return call;
}

// Threads are numbered in the order of their first spans.
int ThreadNumber() {
  static std::atomic<int> count{0};
  static thread_local const int number = count.fetch_add(1);
  return number;
}

}  // namespace

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::optional<int64_t> HostTimeMark::ReadNs() const {
  const int64_t ns = ns_.load(std::memory_order_acquire);
  if (ns == 0) return std::nullopt;
  return ns;
}

void RecordTimeline(int calls) { recorded_calls.store(calls, std::memory_order_relaxed); }

void ReadTimeline(const std::function<void(const std::string&, int, const TimelineSpan&, int64_t,
                                           int64_t)>& give) {
  Timeline& timeline = TheTimeline();
  std::lock_guard<std::mutex> lock(timeline.mutex);
  for (const Recorded& each : timeline.spans) {
    const std::optional<int64_t> begin_ns = each.span.begin->ReadNs();
    const std::optional<int64_t> end_ns = each.span.end->ReadNs();
    if (begin_ns && end_ns) give(each.op, each.call, each.span, *begin_ns, *end_ns);
  }
}

int TimelineCalls::Next() {
  const int calls = recorded_calls.load(std::memory_order_relaxed);
  if (calls == 0 || count_.load(std::memory_order_relaxed) > calls) return -1;
  const int number = count_.fetch_add(1, std::memory_order_relaxed);
  return 0 < number && number <= calls ? number : -1;
}

TimelineCall::TimelineCall(TimelineCalls* calls, std::string_view op)
    : number_(calls->Next()), op_(is_recorded() ? op : ""), outer_(CallOfThread()) {
  CallOfThread() = is_recorded() ? this : nullptr;
}

TimelineCall::~TimelineCall() { CallOfThread() = outer_; }

const TimelineCall* TimelineCall::Current() { return CallOfThread(); }

void TimelineCall::Add(TimelineSpan span) const {
  Timeline& timeline = TheTimeline();
  std::lock_guard<std::mutex> lock(timeline.mutex);
  if (timeline.spans.size() >= kMostSpans) return;
  timeline.spans.push_back({op_, number_, std::move(span)});
}

void ThreadSpan::Begin(const TimelineCall& call) {
  call_ = &call;
  begin_ = std::make_shared<HostTimeMark>();
  begin_->Pass();
}

ThreadSpan::~ThreadSpan() {
  if (call_ == nullptr) return;
  const auto end = std::make_shared<HostTimeMark>();
  end->Pass();
  call_->Add({TimelineSpan::Row::kThread, ThreadNumber(), std::move(name_), std::move(algorithm_),
              begin_, end});
}

}  // namespace tf_interop
