#include "cc_kernels/tf/stage_trace.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "cc_kernels/core/trace.h"
#include "tensorflow/core/profiler/lib/annotated_traceme.h"
#include "tsl/profiler/lib/scoped_annotation.h"
#include "tsl/profiler/lib/traceme.h"
#include "tsl/profiler/lib/traceme_encode.h"

namespace tf_interop {
namespace {

using tensorflow::profiler::AnnotatedTraceMe;
using tsl::profiler::ScopedAnnotation;
using tsl::profiler::TraceMe;
using tsl::profiler::TraceMeEncode;

// What the profiler records unless it is told otherwise.
constexpr int kLevel = tsl::profiler::TraceMeLevel::kInfo;

class LaneSpan : public TraceSpan {
 public:
  explicit LaneSpan(const TraceLabel& label) : annotated_([&] { return Encode(label); }, kLevel) {}

 private:
  static std::string Encode(const TraceLabel& label) {
    return TraceMeEncode(absl::StrCat("lane ", label.lane, ": ", label.convolutions,
                                      label.algorithm.empty() ? "" : " [", label.algorithm,
                                      label.algorithm.empty() ? "" : "]"),
                         {{"lane", label.lane},
                          {"convolutions", label.convolutions},
                          {"algorithm", label.algorithm}});
  }

  AnnotatedTraceMe annotated_;
};

class TensorFlowTracer : public Tracer {
 public:
  bool IsActive() const override {
    return TraceMe::Active(kLevel) || ScopedAnnotation::IsEnabled();
  }
  std::unique_ptr<TraceSpan> Begin(const TraceLabel& label) override {
    return std::make_unique<LaneSpan>(label);
  }
};

std::string ScheduleOf(const StageCall& call) {
  if (!call.why_unplanned.empty()) return absl::StrCat("in sequence: ", call.why_unplanned);
  if (call.schedule_batch_size == 0) return "for every batch size";
  return absl::StrCat("for batch size ", call.schedule_batch_size);
}

void TraceLanes() {
  static const bool once = [] {
    SetTracer(new TensorFlowTracer());
    return true;
  }();
  (void)once;
}

}  // namespace

StageTrace::StageTrace(const tensorflow::OpKernel& kernel)
    : span_([&] { return absl::StrCat("stage ", kernel.name_view()); }, kLevel) {
  TraceLanes();
}

void StageTrace::Describe(const StageProgram& program, const StageCall& call) {
  span_.AppendMetadata([&] {
    return TraceMeEncode({{"schedule", ScheduleOf(call)},
                          {"convolutions", program.steps.size()},
                          {"lanes", call.stage.lane_workspace_bytes.size()}});
  });
}

}  // namespace tf_interop
