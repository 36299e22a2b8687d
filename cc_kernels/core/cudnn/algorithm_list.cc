#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/convolution.h"
#include "cc_kernels/core/cudnn/execution_plan.h"
#include "cc_kernels/core/cudnn/graph.h"

namespace tf_interop {
namespace {

constexpr int64_t kMostValuesOfKnob = 16;

// At most kMostValuesOfKnob of a knob's values, including both ends.
std::vector<int64_t> ValuesBetween(int64_t minimum, int64_t maximum, int64_t stride) {
  if (maximum < minimum) return {};
  stride = std::max<int64_t>(stride, 1);
  const int64_t last = (maximum - minimum) / stride;  // steps from the minimum
  const int64_t count = std::min(last + 1, kMostValuesOfKnob);
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t step = count == 1 ? 0 : i * last / (count - 1);
    values.push_back(minimum + step * stride);
  }
  return values;
}

// The values to try for each knob of a configuration's engine, by type.
Status ReadKnobValues(const BackendDescriptor& config,
                      std::map<int64_t, std::vector<int64_t>>* values) {
  std::vector<BackendDescriptor> knobs;
  TF_INTEROP_RETURN_IF_ERROR(EngineOf(config).GetDescriptors(
      CUDNN_ATTR_ENGINE_KNOB_INFO, CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, "knob", kMostKnobs, &knobs));
  for (const BackendDescriptor& knob : knobs) {
    cudnnBackendKnobType_t type;
    int64_t minimum = 0, maximum = 0, stride = 0;
    TF_INTEROP_RETURN_IF_ERROR(knob.Get(CUDNN_ATTR_KNOB_INFO_TYPE, &type));
    TF_INTEROP_RETURN_IF_ERROR(knob.Get(CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, &minimum));
    TF_INTEROP_RETURN_IF_ERROR(knob.Get(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, &maximum));
    TF_INTEROP_RETURN_IF_ERROR(knob.Get(CUDNN_ATTR_KNOB_INFO_STRIDE, &stride));
    (*values)[static_cast<int64_t>(type)] = ValuesBetween(minimum, maximum, stride);
  }
  return Status::Ok();
}

// The graph of the convolution in one formulation.
struct FormulatedGraph {
  Formulation formulation;
  OperationGraph graph;
};

// Collects names. The list omits whatever cuDNN refuses. Only a lack of memory is an error.
class AlgorithmLister {
 public:
  AlgorithmLister(const CudnnLibrary& library, cudnnHandle_t handle, const Convolution& convolution,
                  bool allow_tf32)
      : library_(library), handle_(handle), convolution_(convolution), allow_tf32_(allow_tf32) {}

  Status BuildGraphs() {
    for (const Formulation& formulation : FormulationsOf(convolution_)) {
      if (formulation.splits_epilogue) {
        // cuDNN 9.8 and 9.28 have no engine for an epilogue of doubles, and none for any epilogue
        // unless they find NVRTC.
        std::shared_ptr<const Executable> plan;
        const Status has_epilogue = PrepareEpilogue(
            library_, handle_, FormulatedConvolution(convolution_, formulation),
            {std::numeric_limits<size_t>::max()}, /*wants_least_workspace=*/false, &plan);
        TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(has_epilogue));
        if (!has_epilogue.ok()) continue;
      }
      formulations_.push_back(formulation);
      OperationGraph graph =
          BuildConvolutionGraph(library_, handle_, ExecutedConvolution(convolution_, formulation));
      TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(graph.graph.status()));
      if (graph.graph.status().ok()) graphs_.push_back({formulation, std::move(graph)});
    }
    return Status::Ok();
  }

  Status AddProposals(bool splits_only_where_needed) {
    bool fused_has_proposals = false;
    for (const FormulatedGraph& formulated : graphs_) {
      const bool splits = formulated.formulation.splits_epilogue;
      // A graph with its epilogue split off comes right after the fused one.
      const bool is_needed = !splits || !std::exchange(fused_has_proposals, false);
      if (splits_only_where_needed && !is_needed) continue;
      const size_t before = algorithms_.size();
      for (const auto heuristic : HeuristicsFor(convolution_)) {
        std::vector<BackendDescriptor> configs;
        const Status proposed = ProposeConfigs(formulated.graph, heuristic, &configs);
        TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(proposed));
        if (!proposed.ok()) continue;
        for (const BackendDescriptor& config : configs) {
          TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(AddConfig(formulated.formulation, config)));
        }
      }
      fused_has_proposals = !splits && algorithms_.size() > before;
    }
    return Status::Ok();
  }

  // Adds every engine, or with `moves_knobs` every engine with one knob moved.
  Status AddEngines(bool moves_knobs) {
    for (const FormulatedGraph& formulated : graphs_) {
      int64_t count = 0;
      TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(
          formulated.graph.graph.Get(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, &count)));
      for (int64_t index = 0; index < count; ++index) {
        const BackendDescriptor config = MakeConfig(formulated.graph, {index, {}});
        TF_INTEROP_RETURN_IF_ERROR(
            LeaveOutRefused(moves_knobs ? AddWithKnobsMoved(formulated, config)
                                        : AddConfig(formulated.formulation, config)));
      }
    }
    return Status::Ok();
  }

  void AddLegacy() {
    for (const Formulation& formulation : formulations_) {
      if (!CheckLegacyForm(ExecutedConvolution(convolution_, formulation)).ok()) continue;
      for (const std::string& name : LegacyNamesOf(convolution_.kind)) {
        Add(formulation, LegacyTag{name});
      }
    }
  }

  Status Finish(std::vector<std::string>* algorithms) {
    if (algorithms_.empty()) {
      const std::string reason =
          first_refusal_.ok() ? "." : ", for example: " + first_refusal_.message();
      return Unsupported("Expected cuDNN to have an algorithm for " + ToString(convolution_) +
                         ", got none" + reason);
    }
    *algorithms = std::move(algorithms_);
    return Status::Ok();
  }

 private:
  Status AddWithKnobsMoved(const FormulatedGraph& formulated, const BackendDescriptor& config) {
    EngineTag tag;
    std::map<int64_t, std::vector<int64_t>> values;
    TF_INTEROP_RETURN_IF_ERROR(ReadTag(config, &tag));
    TF_INTEROP_RETURN_IF_ERROR(ReadKnobValues(config, &values));
    for (const auto& [type, values_of_knob] : values) {
      for (const int64_t value : values_of_knob) {
        EngineTag moved = tag;
        moved.knobs[type] = value;
        TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(
            AddConfig(formulated.formulation, MakeConfig(formulated.graph, moved))));
      }
    }
    return Status::Ok();
  }

  Status AddConfig(const Formulation& formulation, const BackendDescriptor& config) {
    bool reduces_precision = false;
    TF_INTEROP_RETURN_IF_ERROR(ReadReducesPrecision(config, &reduces_precision));
    if (reduces_precision && !allow_tf32_) return Status::Ok();
    EngineTag tag;
    TF_INTEROP_RETURN_IF_ERROR(ReadTag(config, &tag));
    Add(formulation, tag);
    return Status::Ok();
  }

  void Add(const Formulation& formulation, const AlgorithmTag& tag) {
    std::string name = ToString(Algorithm{formulation, tag});
    if (listed_.insert(name).second) algorithms_.push_back(std::move(name));
  }

  Status LeaveOutRefused(const Status& status) {
    if (status.code() == StatusCode::kResourceExhausted) return status;
    first_refusal_.Update(status);
    return Status::Ok();
  }

  const CudnnLibrary& library_;
  const cudnnHandle_t handle_;
  const Convolution& convolution_;
  const bool allow_tf32_;
  std::vector<Formulation> formulations_;  // without split epilogues that have no plan
  std::vector<FormulatedGraph> graphs_;
  std::vector<std::string> algorithms_;
  std::set<std::string> listed_;
  Status first_refusal_;
};

}  // namespace

Status ListCudnnAlgorithms(const CudnnLibrary& library, cudnnHandle_t handle,
                           const Convolution& convolution, AlgorithmScope scope, bool allow_tf32,
                           std::vector<std::string>* algorithms) {
  TF_INTEROP_RETURN_IF_ERROR(CheckComputesSomething(convolution));
  TF_INTEROP_RETURN_IF_ERROR(CheckPadding(convolution));
  AlgorithmLister lister(library, handle, convolution,
                         allow_tf32 || convolution.dtype != DataType::kFloat);
  TF_INTEROP_RETURN_IF_ERROR(lister.BuildGraphs());
  TF_INTEROP_RETURN_IF_ERROR(lister.AddProposals(scope == AlgorithmScope::kHeuristic));
  if (scope != AlgorithmScope::kHeuristic) {
    TF_INTEROP_RETURN_IF_ERROR(lister.AddEngines(/*moves_knobs=*/false));
    lister.AddLegacy();
  }
  if (scope == AlgorithmScope::kKnobs) {
    TF_INTEROP_RETURN_IF_ERROR(lister.AddEngines(/*moves_knobs=*/true));
  }
  return lister.Finish(algorithms);
}

}  // namespace tf_interop
