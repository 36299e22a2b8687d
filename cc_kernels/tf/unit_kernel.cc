// TfInterop>Unit on a CPU: runs the kernels of its steps back to back, on one core or several, or
// once for each part of the batch.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc_kernels/core/lru_cache.h"
#include "cc_kernels/core/ready_steps.h"
#include "cc_kernels/core/self_timing.h"
#include "cc_kernels/core/timeline.h"
#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/packed_values.h"
#include "cc_kernels/tf/primitive_cache.h"
#include "cc_kernels/tf/step_lanes.h"
#include "cc_kernels/tf/steps.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/util/determinism.h"
#include "tsl/platform/denormal.h"

namespace tf_interop {
namespace {

using tensorflow::DataTypeVector;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorValue;

// The attributes of a unit, read and checked.
struct UnitProgram {
  Steps steps;
  int cores = 1;  // if it does not time itself
  std::vector<int64_t> split_inputs;
  DataTypeVector
      kept_types;  // of the values in the last input; empty if it is a tensor like others
  std::vector<tensorflow::DataType> primitive_types;  // see PrimitiveCacheTypes
  LanePlan one_each;                                  // all steps beside each other
  std::shared_ptr<SelfTiming> timing;  // of the unit's graph; null if it does not time itself
  int timed_unit = 0;
};

// The operand with all sizes of a kernel's result, or -1.
int SizesOperand(const tensorflow::OpKernel& kernel) {
  const absl::string_view op = kernel.type_string_view();  // maybe oneDNN's
  if (op == "Reshape") return 1;
  const bool is_transposed_convolution =
      absl::EndsWith(op, "Conv2DBackpropInput") || absl::EndsWith(op, "Conv3DBackpropInputV2");
  return is_transposed_convolution ? 0 : -1;
}

// Finds the steps that depend on the batch.
absl::Status FindStepsOfBatch(UnitProgram* unit) {
  Steps& steps = unit->steps;
  if (unit->split_inputs.empty()) return absl::OkStatus();
  std::vector<bool> is_of_batch(steps.operand_count);
  for (const int64_t input : unit->split_inputs) is_of_batch[input] = true;
  for (KernelStep& step : steps.steps) {
    step.is_of_batch =
        absl::c_any_of(step.reads, [&](const auto& read) { return is_of_batch[read.operand]; });
    const int sizes = SizesOperand(*step.kernel);
    if (step.is_of_batch && sizes >= 0 && !is_of_batch[step.reads[sizes].operand]) {
      step.sizes_of_batch = sizes;
    }
    for (int port = 0; port < step.kernel->num_outputs(); ++port) {
      is_of_batch[step.first_output + port] = step.is_of_batch;
    }
  }
  for (size_t i = 0; i < steps.results.size(); ++i) {
    if (steps.results[i] < steps.input_count || !is_of_batch[steps.results[i]]) {
      return InvalidArgument("Expected results of steps that read a split input, got result ", i,
                             ", which does not depend on any.");
    }
  }
  return absl::OkStatus();
}

int AllCores(const tensorflow::DeviceBase& device) {
  return device.tensorflow_cpu_worker_threads()->num_threads;
}

absl::Status FindTiming(OpKernelConstruction* context, UnitProgram* unit) {
  std::string graph;
  int unit_count = 0;
  TF_RETURN_IF_ERROR(context->GetAttr("timed_graph", &graph));
  TF_RETURN_IF_ERROR(context->GetAttr("timed_unit", &unit->timed_unit));
  TF_RETURN_IF_ERROR(context->GetAttr("timed_units", &unit_count));
  if (graph.empty()) return absl::OkStatus();
  if (unit->timed_unit < 0 || unit->timed_unit >= unit_count) {
    return InvalidArgument("Expected timed_unit from 0 to ", unit_count - 1, ", got ",
                           unit->timed_unit, ".");
  }
  const bool can_divide = !unit->split_inputs.empty();
  if (context->num_inputs() == 0 || (can_divide && unit_count > 1)) {
    return InvalidArgument(
        "Expected a unit that times itself to have inputs, and no split ones unless it is alone.");
  }
  unit->timing = FindSelfTiming(graph, unit_count, AllCores(*context->device()), can_divide);
  if (unit->timing == nullptr) {
    return InvalidArgument("Expected as many timed_units as in the other units of '", graph,
                           "', got ", unit_count, ".");
  }
  return absl::OkStatus();
}

absl::Status ReadKeptTypes(OpKernelConstruction* context, UnitProgram* unit) {
  TF_RETURN_IF_ERROR(context->GetAttr("kept_types", &unit->kept_types));
  const int last = context->num_inputs() - 1;
  if (!unit->kept_types.empty() &&
      (last < 0 || context->input_type(last) != tensorflow::DT_VARIANT)) {
    return InvalidArgument("Expected kept values as the last input, got none.");
  }
  return absl::OkStatus();
}

absl::Status ReadUnit(OpKernelConstruction* context, UnitProgram* unit) {
  std::vector<int64_t> kept_inputs;
  TF_RETURN_IF_ERROR(context->GetAttr("kept_inputs", &kept_inputs));
  TF_RETURN_IF_ERROR(context->GetAttr("cores", &unit->cores));
  TF_RETURN_IF_ERROR(context->GetAttr("split_inputs", &unit->split_inputs));
  TF_RETURN_IF_ERROR(ReadKeptTypes(context, unit));
  DataTypeVector types(context->input_types().begin(), context->input_types().end());
  if (!unit->kept_types.empty()) types.pop_back();
  const int first_held_input = static_cast<int>(types.size());
  types.insert(types.end(), unit->kept_types.begin(), unit->kept_types.end());
  for (const int64_t input : unit->split_inputs) {
    if (input < 0 || input >= first_held_input) {
      return InvalidArgument("Expected split_inputs from 0 to ", first_held_input - 1, ", got ",
                             input, ".");
    }
  }
  if (unit->cores < 0) {
    return InvalidArgument("Expected cores of at least 0, got ", unit->cores, ".");
  }
  const tensorflow::DataTypeSlice result_types = context->output_types();
  TF_RETURN_IF_ERROR(StepsReader(context, std::move(types),
                                 {result_types.begin(), result_types.end()}, std::move(kept_inputs),
                                 &unit->steps)
                         .Read(/*replaces_steps=*/true));
  unit->steps.first_held_input = first_held_input;
  unit->primitive_types = PrimitiveCacheTypes(unit->steps.onednn_types);
  unit->one_each = PlanOfOneCoreEach(unit->steps.order);
  TF_RETURN_IF_ERROR(FindStepsOfBatch(unit));
  return FindTiming(context, unit);
}

class Unit : public OpKernel {
 public:
  explicit Unit(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadUnit(context, &unit_));
  }

  void Compute(OpKernelContext* context) override {
    const TimelineCall call(&timeline_calls_, name_view());
    const int all_cores = AllCores(*context->device());
    Inputs inputs;
    OP_REQUIRES_OK(context, FindInputs(*context, &inputs));
    TimedRun run(unit_, *context);
    const UnitWay way =
        unit_.timing != nullptr ? run.way() : UnitWay{std::min(unit_.cores, all_cores)};
    const int64_t part_count = way.part_size > 0 ? PartCountOf(*context, way, all_cores) : 0;
    const ThreadSpan span(call, [&] {
      std::string names =
          absl::StrJoin(unit_.steps.steps, " ", [](std::string* names, const KernelStep& step) {
            absl::StrAppend(names, step.kernel->name_view());
          });
      return std::pair(std::move(names), NameOf(part_count == 1 ? UnitWay{} : way));
    });
    if (way.is_stock() || part_count == 1) {
      Run(context, inputs, context->device());
    } else if (part_count > 1) {
      RunParts(context, inputs, part_count, call);
    } else {
      RunOn(context, inputs, way.cores, &run);
    }
  }

 private:
  // What operands name: the op's inputs, and the kept values in the last one.
  using Inputs = absl::InlinedVector<TensorValue, 16>;

  absl::Status FindInputs(const OpKernelContext& context, Inputs* inputs) const {
    const auto given = context.params()->inputs;
    inputs->reserve(unit_.steps.input_count);
    inputs->assign(given.begin(), given.end());
    if (unit_.kept_types.empty()) return absl::OkStatus();
    const auto kept = Unpack<const Tensor*>(*inputs->back().tensor);
    inputs->pop_back();
    const size_t count = kept == nullptr ? 0 : kept->size();
    if (count != unit_.kept_types.size()) {
      return InvalidArgument("Expected ", unit_.kept_types.size(), " kept values, got ", count,
                             ".");
    }
    for (const Tensor* const value : *kept) {
      // No step changes it; see Steps::first_held_input.
      inputs->emplace_back(const_cast<Tensor*>(value));
    }
    return absl::OkStatus();
  }

  // Makes the calling thread compute on a few cores.
  struct FewCores {
    FewCores(OpKernelContext* context, int cores, absl::Span<const tensorflow::DataType> types)
        : device(context->device(), cores), primitives(types, device.cores()) {}

    NarrowDevice device;
    const NarrowPrimitives primitives;
    // All threads of TensorFlow's pools flush denormals, but a Session may run ops on the caller's.
    const tsl::port::ScopedFlushDenormal flush;
  };

  static SelfTiming::Sizes SizesOf(const OpKernelContext& context) {
    const auto sizes = context.input(0).shape().dim_sizes();
    return {sizes.begin(), sizes.end()};
  }

  // A run of a unit that times itself; does nothing for others.
  class TimedRun {
   public:
    TimedRun(const UnitProgram& unit, const OpKernelContext& context)
        : unit_(unit), context_(context), step_(context.step_id()) {
      // Results may depend on the number of cores, so none is tried where all must be the same.
      if (unit.timing == nullptr || tensorflow::OpDeterminismRequired()) return;
      const auto sizes = [&context] { return SizesOf(context); };
      run_ = unit.timing->Begin(step_, unit.timed_unit, sizes, NowNs());
      is_timed_ = true;
    }
    ~TimedRun() { End(); }
    TimedRun(const TimedRun&) = delete;
    TimedRun& operator=(const TimedRun&) = delete;

    const UnitWay& way() const { return run_.way; }
    bool is_trial() const { return run_.is_trial; }
    // Whether the unit should go on as in stock TensorFlow.
    bool CheckIsTooLong(int64_t now_ns) {
      if (now_ns > run_.limit_ns) outcome_ = SelfTiming::Outcome::kTooLong;
      return outcome_ == SelfTiming::Outcome::kTooLong;
    }
    // What follows does not count.
    void End() {
      if (!context_.status().ok()) outcome_ = SelfTiming::Outcome::kFailed;
      if (is_timed_) unit_.timing->End(step_, NowNs(), outcome_, simulated_us_);
      is_timed_ = false;
    }
    void SetWarmedUp() { outcome_ = SelfTiming::Outcome::kWarmedUp; }
    void SetSimulated(double us) { simulated_us_ = us; }

   private:
    const UnitProgram& unit_;
    const OpKernelContext& context_;
    const int64_t step_;
    SelfTiming::Run run_;
    bool is_timed_ = false;
    SelfTiming::Outcome outcome_ = SelfTiming::Outcome::kRan;
    double simulated_us_ = 0;
  };

  const Tensor& SplitInput(const OpKernelContext& context, size_t i) const {
    return context.input(static_cast<int>(unit_.split_inputs[i]));
  }

  // 1 if the split inputs do not have the same batch size.
  int64_t PartCountOf(const OpKernelContext& context, const UnitWay& way, int all_cores) const {
    if (SplitInput(context, 0).dims() == 0) return 1;
    const int64_t batch_size = SplitInput(context, 0).dim_size(0);
    for (size_t i = 1; i < unit_.split_inputs.size(); ++i) {
      const Tensor& input = SplitInput(context, i);
      if (input.dims() == 0 || input.dim_size(0) != batch_size) return 1;
    }
    return PartCount(way, batch_size, all_cores);
  }

  // Gives the operands of a run the memory attributes of the op's inputs and outputs.
  void SetAttributes(const OpKernelContext& context, StepsRun* run) const {
    for (int i = 0; i < unit_.steps.first_held_input; ++i) {
      run->SetAttributes(i, context.input_alloc_attr(i));
    }
    for (size_t i = 0; i < unit_.steps.results.size(); ++i) {
      const int result = unit_.steps.results[i];
      if (result < unit_.steps.input_count) continue;
      run->SetAttributes(result, context.output_alloc_attr(static_cast<int>(i)));
    }
  }

  // As in stock TensorFlow.
  void Run(OpKernelContext* context, const Inputs& inputs, tensorflow::DeviceBase* device) {
    StepsRun run(*context, unit_.steps, StepsRun::Kind::kWhole, inputs);
    SetAttributes(*context, &run);
    if (unit_.steps.order.is_chain()) {
      StepsRun::Lane lane(&run);
      for (const KernelStep& step : unit_.steps.steps) {
        OP_REQUIRES_OK(context, lane.Run(step, device));
      }
    } else {
      OP_REQUIRES_OK(context, RunByExecutor(context, unit_.steps, unit_.one_each, &run));
    }
    SetResults(context, inputs, run);
  }

  void SetResults(OpKernelContext* context, const Inputs& inputs, const StepsRun& run) const {
    for (int i = 0; i < context->num_outputs(); ++i) {
      const int result = unit_.steps.results[i];
      const bool is_input = result < unit_.steps.input_count;
      context->set_output(i, is_input ? *inputs[result].tensor : run.output(result));
    }
  }

  // On a few cores. Without times of the steps, one after another on all of them.
  void RunOn(OpKernelContext* context, const Inputs& inputs, int cores, TimedRun* timed) {
    const tsl::port::ScopedFlushDenormal flush;     // see FewCores
    NarrowDevice device(context->device(), cores);  // first, because helpers take time to come
    const std::shared_ptr<StepTimes> times = FindTimes(*context);
    const auto [plan, simulated_us, is_new] =
        times == nullptr ? StepTimes::Planned() : times->BeginRun(cores);
    StepsRun run(*context, unit_.steps, StepsRun::Kind::kWhole, inputs);
    SetAttributes(*context, &run);
    if (plan != nullptr && device.group() != nullptr &&
        absl::c_linear_search(plan->is_wide, false)) {
      if (is_new) timed->SetWarmedUp();
      timed->SetSimulated(simulated_us);
      OP_REQUIRES_OK(
          context, RunByGroup(*context, unit_.steps, *plan, unit_.primitive_types, &device, &run));
    } else {
      OP_REQUIRES_OK(context, RunInTurn(context, &device, times.get(), timed, &run));
    }
    SetResults(context, inputs, run);
    timed->End();
    if (times != nullptr && timed->is_trial()) times->Plan();
  }

  absl::Status RunInTurn(OpKernelContext* context, NarrowDevice* device, StepTimes* times,
                         TimedRun* timed, StepsRun* run) {
    std::optional<NarrowPrimitives> primitives(std::in_place, unit_.primitive_types,
                                               device->cores());
    StepsRun::Lane lane(run);
    std::vector<double> times_us;
    int64_t begin_ns = NowNs();
    for (const KernelStep& step : unit_.steps.steps) {
      if (primitives.has_value() && timed->CheckIsTooLong(begin_ns)) primitives.reset();
      tensorflow::DeviceBase* const of_step = primitives.has_value() ? device : context->device();
      TF_RETURN_IF_ERROR(lane.Run(step, of_step));
      if (!timed->is_trial()) continue;
      const int64_t end_ns = NowNs();
      if (times != nullptr) times_us.push_back(static_cast<double>(end_ns - begin_ns) * 1e-3);
      begin_ns = end_ns;
    }
    if (!times_us.empty() && primitives.has_value()) times->Record(device->cores(), times_us);
    return absl::OkStatus();
  }

  // The times of the steps for inputs of these sizes; null if the steps are not timed, because they
  // are a chain, or because the unit does not time itself.
  std::shared_ptr<StepTimes> FindTimes(const OpKernelContext& context) {
    if (unit_.timing == nullptr || unit_.steps.order.is_chain()) return nullptr;
    const auto sizes = SizesOf(context);
    if (const auto found = times_.Find(sizes)) return *found;
    return times_.Insert(sizes, std::make_shared<StepTimes>(unit_.steps.order));
  }

  // Divides the batch as TensorFlow divides an operation, but once for all steps: each part runs
  // through them on one core, or on several if there are fewer parts than cores.
  void RunParts(OpKernelContext* context, const Inputs& inputs, int64_t part_count,
                const TimelineCall& call) {
    const int cores =
        static_cast<int>(std::max<int64_t>(1, AllCores(*context->device()) / part_count));
    const int64_t batch_size = SplitInput(*context, 0).dim_size(0);
    StepsRun shared(*context, unit_.steps, StepsRun::Kind::kShared, inputs);
    SetAttributes(*context, &shared);
    {
      FewCores one(context, /*cores=*/1, unit_.primitive_types);
      StepsRun::Lane lane(&shared);
      for (const KernelStep& step : unit_.steps.steps) {
        if (!step.is_of_batch) OP_REQUIRES_OK(context, lane.Run(step, &one.device));
      }
    }
    // Every part reads these, so no kernel may overwrite them.
    std::vector<Tensor> held;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!absl::c_linear_search(unit_.split_inputs, i)) held.push_back(*inputs[i].tensor);
    }
    std::vector<absl::Status> statuses(part_count);
    std::vector<std::vector<Tensor>> results(part_count);
    std::atomic<int64_t> next = 0;
    const auto run_parts = [&](int64_t, int64_t) {
      FewCores few(context, cores, unit_.primitive_types);
      for (int64_t i = next++; i < part_count; i = next++) {
        const Part part = {batch_size, i * batch_size / part_count,
                           (i + 1) * batch_size / part_count};
        const ThreadSpan span(call, [&] {
          return std::pair(absl::StrCat("images ", part.first, " to ", part.last - 1),
                           std::string());
        });
        statuses[i] = RunPart(*context, inputs, &few.device, shared, part, &results[i]);
      }
    };
    // Not one block for each part: the calling thread and the whole pool would be more threads than
    // cores.
    context->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(
        std::min<int64_t>(part_count, AllCores(*context->device())),
        tsl::thread::ThreadPool::SchedulingParams::Fixed(/*block_size=*/1), run_parts);
    const auto failed = absl::c_find_if(statuses, [](const auto& status) { return !status.ok(); });
    if (failed != statuses.end() || !FitTogether(results)) {
      Run(context, inputs, context->device());  // its error names the shapes of the whole batch
      return;
    }
    for (int i = 0; i < context->num_outputs(); ++i) {
      OP_REQUIRES_OK(context, Join(context, batch_size, results, i));
    }
  }

  absl::Status RunPart(const OpKernelContext& context, Inputs inputs,
                       tensorflow::DeviceBase* device, const StepsRun& shared, const Part& part,
                       std::vector<Tensor>* results) {
    std::vector<Tensor> slices(unit_.split_inputs.size());
    for (size_t i = 0; i < slices.size(); ++i) {
      slices[i] = SplitInput(context, i).Slice(part.first, part.last);
      if (!slices[i].IsAligned()) slices[i] = tensorflow::tensor::DeepCopy(slices[i]);
      inputs[unit_.split_inputs[i]] = TensorValue(&slices[i]);
    }
    StepsRun run(context, unit_.steps, StepsRun::Kind::kPart, inputs, part);
    SetAttributes(context, &run);
    run.Share(shared);
    StepsRun::Lane lane(&run);
    for (const KernelStep& step : unit_.steps.steps) {
      if (step.is_of_batch) TF_RETURN_IF_ERROR(lane.Run(step, device));
    }
    for (const int result : unit_.steps.results) {
      const Tensor& value = results->emplace_back(run.output(result));
      if (value.dims() == 0 || value.dim_size(0) != part.size()) {
        return absl::InternalError(absl::StrCat("Expected results of ", part.size(),
                                                " images of a batch of ", part.batch_size,
                                                ", got the shape ", value.shape().DebugString()));
      }
    }
    return absl::OkStatus();
  }

  // Whether the results of all parts have one shape, but for the number of images.
  static bool FitTogether(absl::Span<const std::vector<Tensor>> parts) {
    const auto shape_of_image = [](const Tensor& result) {
      tensorflow::TensorShape shape = result.shape();
      shape.RemoveDim(0);
      return shape;
    };
    return absl::c_all_of(parts, [&](const std::vector<Tensor>& part) {
      return absl::c_equal(part, parts[0], [&](const Tensor& one, const Tensor& other) {
        return one.dims() == other.dims() && shape_of_image(one) == shape_of_image(other);
      });
    });
  }

  static absl::Status Join(OpKernelContext* context, int64_t batch_size,
                           absl::Span<const std::vector<Tensor>> parts, int result) {
    tensorflow::TensorShape shape = parts[0][result].shape();
    shape.set_dim(0, batch_size);
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(result, shape, &output));
    int64_t first = 0;
    for (const std::vector<Tensor>& part : parts) {
      const int64_t last = first + part[result].dim_size(0);
      Tensor place = output->Slice(first, last);
      const absl::string_view bytes = part[result].tensor_data();
      std::memcpy(const_cast<char*>(place.tensor_data().data()), bytes.data(), bytes.size());
      first = last;
    }
    return absl::OkStatus();
  }

  UnitProgram unit_;
  TimelineCalls timeline_calls_;
  // By sizes of the input.
  LruCache<SelfTiming::Sizes, std::shared_ptr<StepTimes>> times_{SelfTiming::kMostSizes};
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>Unit").Device(tensorflow::DEVICE_CPU), Unit);

}  // namespace
}  // namespace tf_interop
