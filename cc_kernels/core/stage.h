// What a stage is: steps on lanes that run at the same time.
//
// Steps are numbered by their place in the stage, whatever lanes they are on: buffers, results and
// messages go by that number, and two plans for the same steps (one for each batch size, say)
// differ in their lanes alone.
//
// The steps of a lane run one after another, in the order of their numbers, so that a step may read
// what an earlier step of its lane wrote; whoever makes the stage sees to that. Steps of different
// lanes do not depend on each other. Everything that runs a stage in another way (on fewer lanes,
// in sequence, again after a failure) keeps that order. No step writes what it or an earlier step
// reads: a stage that failed may be run again.
#ifndef TF_INTEROP_CORE_STAGE_H_
#define TF_INTEROP_CORE_STAGE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/c_api.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// What one step computes, as a plan asks for it.
struct Step {
  std::string name;  // the node's name, for messages
  Convolution convolution;
  std::string algorithm;  // pinned, or empty for the backend's own choice
};

// What runs in order, and what it asks for; the C interface states its options.
struct Lane : TfiLaneOptions {
  Lane() : TfiLaneOptions() {}

  std::vector<size_t> steps;  // their numbers, ascending
};

// Every step is on one lane, and no lane is empty.
struct Stage {
  std::vector<Step> steps;
  std::vector<Lane> lanes;
};

// Checks every convolution. Returns kInvalidArgument that says what was expected and what came.
Status Validate(const Stage& stage);

// The same steps on at most `lane_count` lanes, which ask for nothing: lane `lane_count` comes
// after lane 0, and so on.
Stage OnFewerLanes(const Stage& stage, size_t lane_count);

// The same steps, in sequence.
inline Stage InSequence(const Stage& stage) { return OnFewerLanes(stage, 1); }

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_STAGE_H_
