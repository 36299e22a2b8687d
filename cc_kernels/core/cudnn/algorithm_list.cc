#include "cc_kernels/core/cudnn/algorithm_list.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/execution_plan.h"
#include "cc_kernels/core/cudnn/graph.h"
#include "cc_kernels/core/cudnn/legacy_convolution.h"

namespace tf_interop {
namespace {

constexpr int64_t kMostValuesOfKnob = 16;

// At most kMostValuesOfKnob values, both ends among them.
std::vector<int64_t> ValuesOf(const KnobRange& range) {
  if (range.maximum < range.minimum) return {};
  const int64_t stride = std::max<int64_t>(range.stride, 1);
  const int64_t last = (range.maximum - range.minimum) / stride;  // steps from the minimum
  const int64_t count = std::min(last + 1, kMostValuesOfKnob);
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t step = count == 1 ? 0 : i * last / (count - 1);
    values.push_back(range.minimum + step * stride);
  }
  return values;
}

// The convolution in one formulation, as a graph.
struct FormulatedGraph {
  Formulation formulation;
  OperationGraph graph;
};

// Collects names. Refusals by cuDNN leave something out of the list; only a lack of memory is
// handed on.
class AlgorithmLister {
 public:
  AlgorithmLister(const CudnnLibrary& library, cudnnHandle_t handle, const Convolution& convolution,
                  bool allow_reduced_precision)
      : library_(library),
        handle_(handle),
        convolution_(convolution),
        allow_reduced_precision_(allow_reduced_precision) {}

  Status BuildGraphs() {
    for (const Formulation& formulation : FormulationsOf(convolution_)) {
      if (formulation.splits_epilogue) {
        const Status has_epilogue = CheckEpilogue(formulation);
        TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(has_epilogue));
        if (!has_epilogue.ok()) continue;
      }
      formulations_.push_back(formulation);
      FormulatedGraph formulated;
      formulated.formulation = formulation;
      const Status built = BuildConvolutionGraph(
          library_, handle_, ExecutedConvolution(convolution_, formulation), &formulated.graph);
      TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(built));
      if (built.ok()) graphs_.push_back(std::move(formulated));
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
        TF_INTEROP_RETURN_IF_ERROR(AddProposalsOf(formulated, heuristic));
      }
      fused_has_proposals = !splits && algorithms_.size() > before;
    }
    return Status::Ok();
  }

  Status AddEngines() {
    return ForEveryEngine([this](const FormulatedGraph& formulated, int64_t index) {
      return AddEngine(formulated, EngineTag{index, {}});
    });
  }

  Status AddKnobs() {
    return ForEveryEngine([this](const FormulatedGraph& formulated, int64_t index) {
      return AddKnobsOf(formulated, index);
    });
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
  // cuDNN 9.8 and 9.28 have no engine for an epilogue by itself in double, and none at all where
  // they find no NVRTC.
  Status CheckEpilogue(const Formulation& formulation) {
    std::shared_ptr<const Executable> plan;
    ExecutableRequest request;
    request.wants_least_workspace = true;
    return PrepareEpilogue(library_, handle_, FormulatedConvolution(convolution_, formulation),
                           request, &plan);
  }

  template <typename Add>
  Status ForEveryEngine(const Add& add) {
    for (const FormulatedGraph& formulated : graphs_) {
      int64_t count = 0;
      TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(CountEngines(formulated.graph, &count)));
      for (int64_t index = 0; index < count; ++index) {
        TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(add(formulated, index)));
      }
    }
    return Status::Ok();
  }

  Status AddProposalsOf(const FormulatedGraph& formulated, cudnnBackendHeurMode_t heuristic) {
    std::vector<BackendDescriptor> configs;
    const Status proposed = ProposeConfigs(library_, formulated.graph, heuristic, &configs);
    TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(proposed));
    if (!proposed.ok()) return Status::Ok();
    for (const BackendDescriptor& config : configs) {
      TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(AddConfig(formulated.formulation, config)));
    }
    return Status::Ok();
  }

  Status AddEngine(const FormulatedGraph& formulated, const EngineTag& tag) {
    BackendDescriptor config;
    TF_INTEROP_RETURN_IF_ERROR(MakeConfig(library_, formulated.graph, tag, &config));
    return AddConfig(formulated.formulation, config);
  }

  Status AddKnobsOf(const FormulatedGraph& formulated, int64_t index) {
    BackendDescriptor config;
    EngineTag by_itself;
    std::vector<KnobRange> ranges;
    TF_INTEROP_RETURN_IF_ERROR(
        MakeConfig(library_, formulated.graph, EngineTag{index, {}}, &config));
    TF_INTEROP_RETURN_IF_ERROR(ReadTag(library_, config, &by_itself));
    TF_INTEROP_RETURN_IF_ERROR(ReadKnobRanges(library_, config, &ranges));
    for (const KnobRange& range : ranges) {
      for (const int64_t value : ValuesOf(range)) {
        EngineTag moved = by_itself;
        moved.knobs[range.type] = value;
        TF_INTEROP_RETURN_IF_ERROR(LeaveOutRefused(AddEngine(formulated, moved)));
      }
    }
    return Status::Ok();
  }

  Status AddConfig(const Formulation& formulation, const BackendDescriptor& config) {
    bool reduces_precision = false;
    TF_INTEROP_RETURN_IF_ERROR(ReadReducesPrecision(library_, config, &reduces_precision));
    if (reduces_precision && !allow_reduced_precision_) return Status::Ok();
    EngineTag tag;
    TF_INTEROP_RETURN_IF_ERROR(ReadTag(library_, config, &tag));
    Add(formulation, tag);
    return Status::Ok();
  }

  void Add(const Formulation& formulation, const AlgorithmTag& tag) {
    std::string name = ToString(Algorithm{formulation, tag});
    if (listed_.insert(name).second) algorithms_.push_back(std::move(name));
  }

  Status LeaveOutRefused(const Status& status) {
    if (status.code() == StatusCode::kResourceExhausted) return status;
    if (first_refusal_.ok()) first_refusal_ = status;
    return Status::Ok();
  }

  const CudnnLibrary& library_;
  const cudnnHandle_t handle_;
  const Convolution& convolution_;
  const bool allow_reduced_precision_;
  std::vector<Formulation> formulations_;  // whose epilogue, where it is split off, has a plan
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
  AlgorithmLister lister(library, handle, convolution,
                         convolution.dtype != DataType::kFloat || allow_tf32);
  TF_INTEROP_RETURN_IF_ERROR(lister.BuildGraphs());
  TF_INTEROP_RETURN_IF_ERROR(lister.AddProposals(scope == AlgorithmScope::kHeuristic));
  if (scope != AlgorithmScope::kHeuristic) {
    TF_INTEROP_RETURN_IF_ERROR(lister.AddEngines());
    lister.AddLegacy();
  }
  if (scope == AlgorithmScope::kKnobs) TF_INTEROP_RETURN_IF_ERROR(lister.AddKnobs());
  return lister.Finish(algorithms);
}

}  // namespace tf_interop
