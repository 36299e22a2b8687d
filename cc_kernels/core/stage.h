// A stage: lanes of steps that run together.
//
// A step's number is its place in the stage, whatever its lane. Buffers, results and messages use
// that number, so two plans for the same steps (one for each batch size, say) differ only in their
// lanes.
//
// The steps of a lane run in the order of their numbers, and each may read the results of the ones
// before. Steps of different lanes do not depend on each other. Every other way to run a stage (on
// fewer lanes, in sequence, again after a failure) keeps that order. No step writes what it or an
// earlier step reads, so a stage that failed may run again.
#ifndef TF_INTEROP_CORE_STAGE_H_
#define TF_INTEROP_CORE_STAGE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "cc_kernels/core/c_api.h"
#include "cc_kernels/core/convolution.h"

namespace tf_interop {

struct Step {
  std::string name;  // the node's name, for messages
  Convolution convolution;
  std::string algorithm;  // pinned, or empty for the backend's own choice
};

struct Lane : TfiLaneOptions {
  Lane() : TfiLaneOptions() {}

  std::vector<size_t> steps;  // their numbers, ascending
};

// Every step is on one lane, and no lane is empty.
struct Stage {
  std::vector<Step> steps;
  std::vector<Lane> lanes;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_STAGE_H_
