// How the steps of a ConvStage node are put onto lanes: one schedule for every batch size, or one
// for each of several.
//
// A graph whose batch size is not known when it is optimized (Keras' `fit`) gets a node with pins
// for several; which of them hold is decided by each call.
#ifndef TF_INTEROP_TF_STAGE_SCHEDULE_H_
#define TF_INTEROP_TF_STAGE_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc_kernels/core/stage_runner.h"

namespace tf_interop {

// The attributes of a ConvStage node that state its schedules.
struct ScheduleAttributes {
  std::vector<int> batch_sizes;
  // One run of as many entries as there are steps for each schedule.
  std::vector<int> step_lanes;
  std::vector<std::string> algorithms;
  // The lanes of the first schedule, behind them those of the second, and so on.
  std::vector<int> lane_priorities;
  std::vector<int> lane_sm_counts;
  std::vector<int> merged_lanes;  // 0 or 1
};

// Where each step runs, and with what.
struct StageSchedule {
  std::vector<int> step_lanes;
  std::vector<std::string> algorithms;  // an empty one leaves the choice to the backend
  std::vector<LaneOptions> lanes;       // for each lane, or none where no lane asks for anything
};

struct StageSchedules {
  // What the schedules are for, one each; empty where the one schedule is for every batch size.
  std::vector<int64_t> batch_sizes;
  std::vector<StageSchedule> schedules;  // one or more
};

// Returns kInvalidArgument that says what was expected and what came. There is a step, or more.
absl::Status ParseStageSchedules(const ScheduleAttributes& attributes, size_t step_count,
                                 StageSchedules* parsed);

// Gives `steps`, whose convolutions are known, the lanes and algorithms of the schedule for their
// batch size, and gives what the lanes ask for.
//
// The batch size of a stage is that of most of its convolutions, of two that are as frequent the
// first one's: a plan says the batch size of a graph in the same way, so that convolutions of a
// detector's regions, or of a constant, do not decide. Those that compute nothing do not count.
//
// A batch size without a schedule runs in sequence, with the backend's own choices: nothing says
// that running at the same time wins there. `why_unplanned` says so; it is empty otherwise. Returns
// the batch size that the schedule is for, 0 where it is for every one or there is none.
int64_t ApplySchedule(const StageSchedules& schedules, std::vector<StageStep>* steps,
                      std::vector<LaneOptions>* lanes, std::string* why_unplanned);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STAGE_SCHEDULE_H_
