#include "tests/cc/fake_cudnn_attributes.h"

#include <utility>

namespace tf_interop::fake_cudnn {
const std::map<int, Rule>& Rules() {
  static const auto* rules = [] {
    auto* all = new std::map<int, Rule>();
    const auto add = [all](int name, cudnnBackendDescriptorType_t owner,
                           std::vector<cudnnBackendAttributeType_t> types, int64_t fewest,
                           int64_t most, bool required) {
      (*all)[name] = {owner, std::move(types), fewest, most, required};
    };
    const auto tensor = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
    add(CUDNN_ATTR_TENSOR_UNIQUE_ID, tensor, {CUDNN_TYPE_INT64}, 1, 1, true);
    add(CUDNN_ATTR_TENSOR_DATA_TYPE, tensor, {CUDNN_TYPE_DATA_TYPE}, 1, 1, true);
    add(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, tensor, {CUDNN_TYPE_INT64}, 1, 1, true);
    add(CUDNN_ATTR_TENSOR_DIMENSIONS, tensor, {CUDNN_TYPE_INT64}, 1, 8, true);
    add(CUDNN_ATTR_TENSOR_STRIDES, tensor, {CUDNN_TYPE_INT64}, 1, 8, true);
    add(CUDNN_ATTR_TENSOR_IS_VIRTUAL, tensor, {CUDNN_TYPE_BOOLEAN}, 1, 1, false);
    const auto convolution = CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR;
    add(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, convolution, {CUDNN_TYPE_DATA_TYPE}, 1, 1, true);
    add(CUDNN_ATTR_CONVOLUTION_CONV_MODE, convolution, {CUDNN_TYPE_CONVOLUTION_MODE}, 1, 1, true);
    add(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, convolution, {CUDNN_TYPE_INT64}, 1, 1, true);
    for (const int name :
         {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
          CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS}) {
      add(name, convolution, {CUDNN_TYPE_INT64}, 1, 8, true);
    }
    const auto pointwise = CUDNN_BACKEND_POINTWISE_DESCRIPTOR;
    add(CUDNN_ATTR_POINTWISE_MODE, pointwise, {CUDNN_TYPE_POINTWISE_MODE}, 1, 1, true);
    add(CUDNN_ATTR_POINTWISE_MATH_PREC, pointwise, {CUDNN_TYPE_DATA_TYPE}, 1, 1, true);
    add(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, pointwise, {CUDNN_TYPE_NAN_PROPOGATION}, 1, 1, false);
    for (const int name :
         {CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP,
          CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_ATTR_POINTWISE_ELU_ALPHA}) {
      add(name, pointwise, {CUDNN_TYPE_DOUBLE, CUDNN_TYPE_FLOAT}, 1, 1, false);
    }
    const auto add_operation = [&](cudnnBackendDescriptorType_t owner, std::vector<int> tensors,
                                   int applied, std::vector<int> scales) {
      for (const int name : tensors) add(name, owner, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1, true);
      add(applied, owner, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1, true);
      for (const int name : scales) {
        add(name, owner, {CUDNN_TYPE_FLOAT, CUDNN_TYPE_DOUBLE}, 1, 1, true);
      }
    };
    add_operation(
        CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA});
    add_operation(
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA});
    add_operation(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                  {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                  {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA});
    add_operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                  {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC},
                  CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, {});
    add(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
        {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1, false);
    const auto graph = CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
    add(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, graph, {CUDNN_TYPE_HANDLE}, 1, 1, true);
    add(CUDNN_ATTR_OPERATIONGRAPH_OPS, graph, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 32, true);
    add(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, graph, {CUDNN_TYPE_INT64}, 0, 0, false);
    const auto engine = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
    add(CUDNN_ATTR_ENGINE_KNOB_INFO, engine, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 0, 0, false);
    const auto knob = CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR;
    add(CUDNN_ATTR_KNOB_INFO_TYPE, knob, {CUDNN_TYPE_KNOB_TYPE}, 0, 0, false);
    for (const int name : {CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE,
                           CUDNN_ATTR_KNOB_INFO_STRIDE}) {
      add(name, knob, {CUDNN_TYPE_INT64}, 0, 0, false);
    }
    add(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, engine, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1, true);
    add(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, engine, {CUDNN_TYPE_INT64}, 1, 1, true);
    add(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, engine, {CUDNN_TYPE_NUMERICAL_NOTE}, 0, 64, false);
    const auto config = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    add(CUDNN_ATTR_ENGINECFG_ENGINE, config, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1, true);
    add(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, config, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 64, false);
    const auto choice = CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR;
    add(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, choice, {CUDNN_TYPE_KNOB_TYPE}, 1, 1, true);
    add(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, choice, {CUDNN_TYPE_INT64}, 1, 1, true);
    const auto heuristic = CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR;
    add(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, heuristic, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1,
        true);
    add(CUDNN_ATTR_ENGINEHEUR_MODE, heuristic, {CUDNN_TYPE_HEUR_MODE}, 1, 1, true);
    add(CUDNN_ATTR_ENGINEHEUR_RESULTS, heuristic, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 0, 0, false);
    const auto plan = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
    add(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, plan, {CUDNN_TYPE_HANDLE}, 1, 1, true);
    add(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, plan, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1,
        false);
    add(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, plan, {CUDNN_TYPE_INT64}, 0, 0, false);
    const auto pack = CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;
    add(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, pack, {CUDNN_TYPE_INT64}, 1, 64, true);
    add(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pack, {CUDNN_TYPE_VOID_PTR}, 1, 64, true);
    add(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, pack, {CUDNN_TYPE_VOID_PTR}, 1, 1, true);
    return all;
  }();
  return *rules;
}

size_t BytesOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
      return 8;
    default:
      return 4;
  }
}

}  // namespace tf_interop::fake_cudnn
