#include "cc_kernels/tf/stage_trace.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "cc_kernels/core/timeline.h"
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

// The profiler records this level by default.
constexpr int kLevel = tsl::profiler::TraceMeLevel::kInfo;

std::string Encode(const TraceLabel& label) {
  return TraceMeEncode(
      absl::StrCat("lane ", label.lane, ": ", label.convolutions,
                   label.algorithm.empty() ? "" : " [", label.algorithm,
                   label.algorithm.empty() ? "" : "]"),
      {{"lane", label.lane}, {"convolutions", label.convolutions}, {"algorithm", label.algorithm}});
}

constexpr Tracer kTensorFlowTracer = {
    [] { return TraceMe::Active(kLevel) || ScopedAnnotation::IsEnabled(); },
    [](const TraceLabel& label) -> std::shared_ptr<void> {
      return std::make_shared<AnnotatedTraceMe>([&] { return Encode(label); }, kLevel);
    }};

std::string ScheduleOf(const ResolvedStage& resolved) {
  if (resolved.unplanned_kind != nullptr) {
    return absl::StrCat("none: ", resolved.why_unplanned);
  }
  if (resolved.schedule->batch_size == 0) return "for every batch size";
  return absl::StrCat("for batch size ", resolved.schedule->batch_size);
}

}  // namespace

StageTrace::StageTrace(const tensorflow::OpKernel& kernel)
    : span_([&] { return absl::StrCat("stage ", kernel.name_view()); }, kLevel) {
  process_tracer = &kTensorFlowTracer;
}

void StageTrace::Describe(const StageCall& call) {
  span_.AppendMetadata([&] {
    return TraceMeEncode(
        {{"schedule", ScheduleOf(call.resolved())},
         {"convolutions", call.resolved().result_shapes.size()},
         {"lanes", call.runs_stock() ? 1 : call.prepared().lane_workspace_bytes.size()}});
  });
}

}  // namespace tf_interop
