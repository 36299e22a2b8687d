#include "cc_kernels/core/cudnn/sm_partition.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

namespace tf_interop {
namespace {

template <typename Count>
std::string Join(const std::vector<Count>& counts) {
  std::string text;
  for (Count count : counts) text += (text.empty() ? "" : ", ") + std::to_string(count);
  return "[" + text + "]";
}

// All SMs of a device: the smallest groups that a green context can have, and the rest.
struct SmGroups {
  int device_sm_count = 0;
  int granularity = 0;
  std::vector<CUdevResource> groups;
  std::vector<CUdevResource> rest;  // one or none
};

Status SplitDevice(const CudaDriver& driver, CUdevice device, SmGroups* split) {
  CUdevResource all = {};
  TF_INTEROP_RETURN_IF_ERROR(
      TF_INTEROP_CALL(driver, cuDeviceGetDevResource, device, &all, CU_DEV_RESOURCE_TYPE_SM));
  unsigned int count = 0;
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(
      driver, cuDevSmResourceSplitByCount, /*result=*/nullptr, &count, &all, /*remaining=*/nullptr,
      /*useFlags=*/0, /*minCount=*/1));
  if (count == 0) return Unsupported("Expected a GPU whose SMs can be divided, got one group.");
  split->groups.resize(count);
  CUdevResource rest = {};
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(driver, cuDevSmResourceSplitByCount,
                                             split->groups.data(), &count, &all, &rest,
                                             /*useFlags=*/0, /*minCount=*/1));
  split->groups.resize(count);
  if (rest.type == CU_DEV_RESOURCE_TYPE_SM && rest.sm.smCount > 0) split->rest = {rest};
  split->device_sm_count = static_cast<int>(all.sm.smCount);
  split->granularity = static_cast<int>(split->groups[0].sm.smCount);
  return Status::Ok();
}

// The resources of each green context: one for each lane with a count, in order, then one for all
// lanes without a count.
Status DivideGroups(const SmGroups& split, const std::vector<int>& counts,
                    std::vector<std::vector<CUdevResource>>* shares) {
  auto next = split.groups.begin();
  std::vector<int64_t> rounded;
  bool fits = true;
  for (const int64_t count : counts) {
    const int64_t groups = (count + split.granularity - 1) / split.granularity;
    rounded.push_back(groups * split.granularity);
    fits = fits && groups <= split.groups.end() - next;
    if (!fits || groups == 0) continue;
    shares->emplace_back(next, next + groups);
    next += groups;
  }
  if (std::count(counts.begin(), counts.end(), 0) > 0) {
    shares->emplace_back(next, split.groups.end());
    shares->back().insert(shares->back().end(), split.rest.begin(), split.rest.end());
    fits = fits && !shares->back().empty();
  }
  if (fits) return Status::Ok();
  return Unsupported(
      "Expected SM counts that fit on the GPU together, got " + Join(counts) + ", or " +
      Join(rounded) + " in groups of " + std::to_string(split.granularity) +
      ", where 0 means the remaining SMs; the GPU has " + std::to_string(split.device_sm_count) +
      " SMs in " + std::to_string(split.groups.size()) + " such groups. Ask for fewer.");
}

Status MakeGreenContext(const CudaDriver& driver, CUdevice device, std::vector<CUdevResource> share,
                        std::unique_ptr<GreenContext>* green) {
  CUdevResourceDesc descriptor = nullptr;  // the driver has no call to free one
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(driver, cuDevResourceGenerateDesc, &descriptor,
                                             share.data(),
                                             static_cast<unsigned int>(share.size())));
  CUgreenCtx handle = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(driver, cuGreenCtxCreate, &handle, descriptor, device,
                                             CU_GREEN_CTX_DEFAULT_STREAM));
  CUdevResource given = {};
  const Status status =
      TF_INTEROP_CALL(driver, cuGreenCtxGetDevResource, handle, &given, CU_DEV_RESOURCE_TYPE_SM);
  *green = std::make_unique<GreenContext>(driver, handle, static_cast<int>(given.sm.smCount));
  return status;
}

}  // namespace

Status MakeSmPartition(const CudaDriver& driver, CUcontext context, const std::vector<int>& counts,
                       SmPartition* partition) {
  TF_INTEROP_RETURN_IF_ERROR(driver.CheckHasGreenContexts());
  // CUDA's documentation advises creating green contexts while the primary context is current.
  TF_INTEROP_ENTER_CONTEXT(driver, context);
  CUdevice device = 0;
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(driver, cuCtxGetDevice, &device));
  SmGroups split;
  TF_INTEROP_RETURN_IF_ERROR(SplitDevice(driver, device, &split));
  std::vector<std::vector<CUdevResource>> shares;
  TF_INTEROP_RETURN_IF_ERROR(DivideGroups(split, counts, &shares));

  SmPartition made;
  for (std::vector<CUdevResource>& share : shares) {
    TF_INTEROP_RETURN_IF_ERROR(
        MakeGreenContext(driver, device, std::move(share), &made.green_contexts.emplace_back()));
  }
  size_t next = 0;
  for (int count : counts) {
    made.of_lane.push_back(
        (count == 0 ? made.green_contexts.back() : made.green_contexts[next++]).get());
  }
  *partition = std::move(made);
  return Status::Ok();
}

}  // namespace tf_interop
