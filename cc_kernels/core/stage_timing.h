// Times the calls of a stage on its stream, and keeps the fastest way to run it.
//
// A plan predicts times from profiles. Only the program itself shows whether they hold beside its
// other work, so each stage compares its ways: TensorFlow's own kernels, the plan, and the plan's
// steps in sequence. Nobody waits: the marks of a call are read at a later one.
#ifndef TF_INTEROP_CORE_STAGE_TIMING_H_
#define TF_INTEROP_CORE_STAGE_TIMING_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc_kernels/core/timeline.h"
#include "cc_kernels/core/way_trials.h"

namespace tf_interop {

// Thread-safe.
class StageTiming {
 public:
  enum class Way {
    kStock,     // step by step, with TensorFlow's own kernels
    kPlanned,   // as planned
    kSequence,  // as planned, but on one lane
  };

  // `name` and `sizes` are for reports.
  StageTiming(std::string name, std::string sizes, bool has_sequence);

  // A call of the stage.
  struct Call {
    Way way = Way::kPlanned;
    bool is_trial = false;
    bool is_timed = false;
    int64_t turn = 0;
  };
  Call Begin();
  // For a timed call, after all of it is enqueued. Both marks are on the stream of the call.
  void End(const Call& call, std::shared_ptr<const TimeMark> begin,
           std::shared_ptr<const TimeMark> end);

  TrialsReport Read();

 private:
  struct Pending {
    int64_t turn = 0;
    std::shared_ptr<const TimeMark> begin, end;
  };

  // Records the calls that are over. Requires mutex_.
  void RecordEnded();

  const std::string name_;
  const std::string sizes_;
  std::mutex mutex_;  // guards the rest
  WayTrials trials_;
  std::deque<Pending> pending_;  // in the order of their ends
  int64_t settled_calls_ = 0;    // calls since a trial ended
};

// A timing that reports include for as long as somebody holds it.
std::shared_ptr<StageTiming> MakeStageTiming(std::string name, std::string sizes,
                                             bool has_sequence);

std::vector<TrialsReport> ReadStageTimings();

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_STAGE_TIMING_H_
