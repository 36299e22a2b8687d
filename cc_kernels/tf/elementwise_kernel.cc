// The op TfInterop>Elementwise and its kernel.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/base/casts.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/tf/elementwise.h"
#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/program.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_interop {
namespace {

using tensorflow::bfloat16;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

REGISTER_OP("TfInterop>Elementwise")
    .Input("inputs: Tin")
    .Output("output: Tout")
    .Attr("Tin: list({float, bfloat16}) >= 1")
    .Attr("Tout: {float, bfloat16}")
    .Attr("steps: list(string) >= 1")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(R"doc(
Elementwise operations in one pass over memory. Only a TfInterop>Unit has this op, as a step.

inputs: The tensors that the steps read, each once.
output: The output of the last step.
steps: As in TfInterop>Unit.
)doc");

// Elements that run through all operations at once.
constexpr int64_t kBlock = 1024;

// Operands are numbered: the inputs, then the steps.
struct Operation {
  Elementwise kind = Elementwise::kAdd;
  std::string op;
  std::string name;
  std::vector<int> operands;
  bool is_narrow = false;  // whether the result is bfloat16
};

// a[i * step_a] and b[i * step_b], with steps of 0 or 1. `out` may be `a` or `b`.
template <int step_a, int step_b, typename Op>
void Apply(const float* a, const float* b, float* out, int64_t count, Op op) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) out[i] = op(a[i * step_a], b[i * step_b]);
}

// An operand of a block: one value for each element, or one for all.
struct Values {
  const float* data = nullptr;
  bool is_scalar = false;
  bool is_rounded = true;  // else they are still to be rounded to bfloat16
};

template <typename Op>
void Apply(const Values& a, const Values& b, float* out, int64_t count, Op op) {
  if (b.is_scalar) {
    a.is_scalar ? Apply<0, 0>(a.data, b.data, out, count, op)
                : Apply<1, 0>(a.data, b.data, out, count, op);
  } else {
    a.is_scalar ? Apply<0, 1>(a.data, b.data, out, count, op)
                : Apply<1, 1>(a.data, b.data, out, count, op);
  }
}

// NaN if one of the values is, as in TensorFlow's kernels.
float Maximum(float a, float b) { return (a > b) | (a != a) ? a : b; }
float Minimum(float a, float b) { return (a < b) | (a != a) ? a : b; }

void Apply(Elementwise kind, const Values& a, const Values& b, float* out, int64_t count) {
  switch (kind) {
    case Elementwise::kAdd:
      return Apply(a, b, out, count, [](float x, float y) { return x + y; });
    case Elementwise::kSub:
      return Apply(a, b, out, count, [](float x, float y) { return x - y; });
    case Elementwise::kMul:
      return Apply(a, b, out, count, [](float x, float y) { return x * y; });
    case Elementwise::kDiv:
      return Apply(a, b, out, count, [](float x, float y) { return x / y; });
    case Elementwise::kMaximum:
      return Apply(a, b, out, count, Maximum);
    case Elementwise::kMinimum:
      return Apply(a, b, out, count, Minimum);
    case Elementwise::kCast:
      return;  // it has the values of its operand
    case Elementwise::kSquare:
      return Apply(a, a, out, count, [](float x, float) { return x * x; });
    case Elementwise::kRelu:
      return Apply(a, a, out, count, [](float x, float) { return Maximum(x, 0); });
    case Elementwise::kRelu6:
      return Apply(a, a, out, count, [](float x, float) { return Minimum(Maximum(x, 0), 6); });
  }
}

// A tensor's memory: bfloat16 if it is narrow, else float32. All is computed in float32, and
// rounded after each operation in bfloat16, as TensorFlow's kernels do.
struct Memory {
  const void* data = nullptr;
  bool is_narrow = false;
};

Memory MemoryOf(const Tensor& tensor) {
  return {tensor.data(), tensor.dtype() == tensorflow::DT_BFLOAT16};
}

// Copies `count` values from the one of number `first` on.
void Widen(const Memory& from, int64_t first, int64_t count, float* to) {
  if (!from.is_narrow) {
    std::copy_n(static_cast<const float*>(from.data) + first, count, to);
    return;
  }
  const bfloat16* const narrow = static_cast<const bfloat16*>(from.data) + first;
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(narrow[i]);
}

// The bits of a value rounded to bfloat16, to nearest with ties to even.
uint32_t RoundedBits(float value) {
  const uint32_t bits = absl::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
  return value != value ? 0x7fc00000 : rounded;
}

// `to` may be `from`.
void Round(const float* from, int64_t count, float* to) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = absl::bit_cast<float>(RoundedBits(from[i]));
}

void Narrow(const float* from, int64_t count, bfloat16* to) {
  uint16_t* const bits = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) bits[i] = RoundedBits(from[i]) >> 16;
}

// A tensor that a pass reads. An image is what an index of the result's first dimensions names.
struct Source {
  Memory memory;
  int64_t image_size = 0;  // of the tensor; 0 if all images read the same
  int64_t period = 0;      // elements of an image that repeat; those of the image if none do
};

// How the elements of a result are read from tensors that are broadcast to it.
struct Places {
  int64_t images = 1;
  int64_t elements = 0;  // of an image
  absl::InlinedVector<Source, 8> sources;
};

// Evaluates a few operations that have the shape of the last.
class Pass {
 public:
  // `members` are in order; the last has the result.
  Pass(const std::vector<Operation>& operations, std::vector<int> members, int input_count)
      : operations_(operations), members_(std::move(members)), input_count_(input_count) {}

  // The tensors that are read, by operand; each once.
  std::vector<int> Reads() const {
    std::vector<int> reads;
    for (const int member : members_) {
      for (const int operand : operations_[member].operands) {
        if (!IsInside(operand) && !absl::c_linear_search(reads, operand)) reads.push_back(operand);
      }
    }
    return reads;
  }

  void Run(const Places& places, OpKernelContext* context, void* out) const {
    const int64_t blocks = (places.elements + kBlock - 1) / kBlock;
    // One operation on a vector of eight and its part of the tensors take about two cycles.
    const int64_t vectors = std::min(kBlock, places.elements) / 8 + 1;
    const int64_t cycles =
        2 * vectors * static_cast<int64_t>(members_.size() + places.sources.size());
    DivideWork(
        *context->device(), places.images * blocks, cycles,
        [&](int64_t first, int64_t last) { Blocks(*this, places, out).Run(first, last, blocks); });
  }

 private:
  bool IsInside(int operand) const {
    return operand >= input_count_ && absl::c_linear_search(members_, operand - input_count_);
  }

  // The blocks that one thread computes.
  class Blocks {
   public:
    Blocks(const Pass& pass, const Places& places, void* out)
        : pass_(pass),
          reads_(pass.Reads()),
          places_(places),
          out_(out),
          block_(std::min(kBlock, places.elements)),
          results_(pass.members_.size() * block_),
          scratch_(block_),
          tiles_(places.sources.size()),
          widened_(places.sources.size()),
          values_(pass.input_count_ + pass.operations_.size()) {}

    void Run(int64_t first, int64_t last, int64_t blocks_of_image) {
      for (int64_t block = first; block < last; ++block) {
        const int64_t image = block / blocks_of_image;
        if (image != image_) SetImage(image);
        const int64_t begin = block % blocks_of_image * kBlock;
        RunBlock(begin, std::min(begin + kBlock, places_.elements));
      }
    }

   private:
    // Short periods are written so often that a block can begin anywhere.
    void SetImage(int64_t image) {
      for (size_t i = 0; i < tiles_.size(); ++i) {
        const Source& source = places_.sources[i];
        const bool is_tiled =
            source.period > 1 && source.period <= kBlock && source.period < places_.elements;
        if (!is_tiled || (image_ >= 0 && source.image_size == 0)) continue;
        tiles_[i].resize(kBlock + source.period);
        for (size_t j = 0; j < tiles_[i].size(); j += source.period) {
          const int64_t count = std::min<int64_t>(source.period, tiles_[i].size() - j);
          Widen(source.memory, image * source.image_size, count, tiles_[i].data() + j);
        }
      }
      image_ = image;
    }

    void RunBlock(int64_t begin, int64_t end) {
      while (begin < end) {
        int64_t stop = end;  // before a long period begins anew
        for (size_t i = 0; i < tiles_.size(); ++i) {
          const Source& source = places_.sources[i];
          if (source.period > 1 && tiles_[i].empty()) {
            stop = std::min(stop, begin + source.period - begin % source.period);
          }
        }
        for (size_t i = 0; i < tiles_.size(); ++i) SetValues(i, begin, stop - begin);
        Compute(begin, stop - begin);
        begin = stop;
      }
    }

    // The values of a source for a block.
    void SetValues(size_t i, int64_t begin, int64_t count) {
      const Source& source = places_.sources[i];
      const bool is_scalar = source.period == 1;
      const int64_t phase = source.period > 1 ? begin % source.period : 0;
      const float* data = tiles_[i].data() + phase;
      if (tiles_[i].empty()) {
        const int64_t first = image_ * source.image_size + phase;
        data = static_cast<const float*>(source.memory.data) + first;
        if (source.memory.is_narrow) {
          widened_[i].resize(block_);
          Widen(source.memory, first, is_scalar ? 1 : count, widened_[i].data());
          data = widened_[i].data();
        }
      }
      values_[reads_[i]] = {data, is_scalar};
    }

    void Compute(int64_t begin, int64_t count) {
      const int64_t first = image_ * places_.elements + begin;
      float* result = results_.data();
      for (const int member : pass_.members_) {
        const Operation& operation = pass_.operations_[member];
        // `out_` may be an operand's memory, so only the last operation writes it.
        const bool is_last = member == pass_.members_.back();
        float* const to =
            is_last && !operation.is_narrow ? static_cast<float*>(out_) + first : result;
        const Values value = Evaluate(operation, count, result, to);
        if (is_last && operation.is_narrow) {
          Narrow(value.data, count, static_cast<bfloat16*>(out_) + first);
        } else if (is_last && value.data != to) {
          std::copy_n(value.data, count, to);
        }
        values_[pass_.input_count_ + member] = value;
        result += block_;
      }
    }

    // The values of an operation. They are those of an operand, or in `result`, or at last in `to`.
    Values Evaluate(const Operation& operation, int64_t count, float* result, float* to) {
      Values value = values_[operation.operands[0]];
      const bool narrows = operation.kind == Elementwise::kCast && operation.is_narrow;
      // Rounding keeps the order of values, zero and six, so it may wait for these.
      const bool may_wait =
          narrows || operation.kind == Elementwise::kRelu || operation.kind == Elementwise::kRelu6;
      if (!may_wait) value = Rounded(value, count, result);
      if (operation.kind == Elementwise::kCast) {
        value.is_rounded = !narrows;
        return value;
      }
      const size_t rounds = std::max<size_t>(operation.operands.size(), 2) - 1;
      for (size_t i = 1; i <= rounds; ++i) {
        const bool is_unary = i >= operation.operands.size();
        const Values other =
            is_unary ? value : Rounded(values_[operation.operands[i]], count, scratch_.data());
        float* const end = i == rounds ? to : result;
        Apply(operation.kind, value, other, end, count);
        const bool is_rounded = !operation.is_narrow || (may_wait && value.is_rounded);
        value = {end, /*is_scalar=*/false, is_rounded};
        if (i < rounds) value = Rounded(value, count, result);
      }
      return value;
    }

    static Values Rounded(const Values& value, int64_t count, float* to) {
      if (value.is_rounded) return value;
      Round(value.data, value.is_scalar ? 1 : count, to);
      return {to, value.is_scalar};
    }

    const Pass& pass_;
    const std::vector<int> reads_;
    const Places& places_;
    void* const out_;
    const int64_t block_;
    std::vector<float> results_;               // a block for each operation
    std::vector<float> scratch_;               // a block for an operand that is rounded
    std::vector<std::vector<float>> tiles_;    // by source; empty if it is read where it is
    std::vector<std::vector<float>> widened_;  // by source; a block of those that are narrow
    std::vector<Values> values_;               // by operand
    int64_t image_ = -1;
  };

  const std::vector<Operation>& operations_;
  const std::vector<int> members_;
  const int input_count_;
};

// The shape of what is broadcast to both.
std::optional<TensorShape> Broadcast(const TensorShape& first, const TensorShape& second) {
  const bool is_longer = first.dims() >= second.dims();
  TensorShape shape = is_longer ? first : second;
  const TensorShape& other = is_longer ? second : first;
  const int skipped = shape.dims() - other.dims();
  for (int i = 0; i < other.dims(); ++i) {
    const int64_t size = shape.dim_size(skipped + i);
    if (size == other.dim_size(i) || other.dim_size(i) == 1) continue;
    if (size != 1) return std::nullopt;
    shape.set_dim(skipped + i, other.dim_size(i));
  }
  return shape;
}

int64_t Product(const TensorShape& shape, int first, int last) {
  int64_t product = 1;
  for (int i = first; i < last; ++i) product *= shape.dim_size(i);
  return product;
}

// A shape among those that a tensor is broadcast to: it has the first `images` dimensions of the
// result and those from `period` on, and between them ones.
struct Form {
  int images = 0;
  int period = 0;
};

// Empty if a shape has another form.
std::optional<Form> FindForm(const TensorShape& shape, const TensorShape& result) {
  const int skipped = result.dims() - shape.dims();
  const auto size = [&](int i) { return i < skipped ? 1 : shape.dim_size(i - skipped); };
  int i = result.dims();
  while (i > 0 && size(i - 1) == result.dim_size(i - 1)) --i;
  Form form{0, i};
  while (i > 0 && size(i - 1) == 1) --i;
  // Sizes of one belong to the images, too, if others before them do.
  form.images = i;
  for (; i > 0; --i) {
    if (size(i - 1) != result.dim_size(i - 1)) return std::nullopt;
  }
  return form;
}

// Gives a tensor the shape `shape`, with its values repeated.
absl::Status Repeat(OpKernelContext* context, const TensorShape& shape, Tensor* tensor) {
  Tensor repeated;
  TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), shape, &repeated));
  const int skipped = shape.dims() - tensor->dims();
  std::vector<int64_t> strides(shape.dims());
  int64_t stride = 1;
  for (int i = shape.dims() - 1; i >= skipped; --i) {
    const int64_t size = tensor->dim_size(i - skipped);
    strides[i] = size == 1 ? 0 : stride;
    stride *= size;
  }
  const size_t size = tensorflow::DataTypeSize(tensor->dtype());
  const char* const from = static_cast<const char*>(tensor->data());
  char* const to = static_cast<char*>(repeated.data());
  std::vector<int64_t> place(shape.dims());
  int64_t offset = 0;
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    std::memcpy(to + i * size, from + offset * size, size);
    for (int dim = shape.dims() - 1; dim >= 0; --dim) {
      offset += strides[dim];
      if (++place[dim] < shape.dim_size(dim)) break;
      offset -= strides[dim] * shape.dim_size(dim);
      place[dim] = 0;
    }
  }
  *tensor = std::move(repeated);
  return absl::OkStatus();
}

class ElementwiseKernel : public OpKernel {
 public:
  explicit ElementwiseKernel(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<std::string> steps;
    OP_REQUIRES_OK(context, context->GetAttr("steps", &steps));
    for (const std::string& serialized : steps) {
      OP_REQUIRES_OK(context, ReadStep(serialized));
    }
  }

  void Compute(OpKernelContext* context) override {
    std::vector<TensorShape> shapes;
    OP_REQUIRES_OK(context, FindShapes(*context, &shapes));
    // Operations of other shapes than the last, such as factors of channels, have a pass each.
    const TensorShape& shape = shapes.back();
    std::vector<Tensor> values(operations_.size());
    std::vector<int> members;
    for (int i = 0; i < static_cast<int>(operations_.size()); ++i) {
      const TensorShape& own = shapes[num_inputs() + i];
      if (own == shape) {
        members.push_back(i);
        continue;
      }
      Tensor value;
      OP_REQUIRES_OK(context, context->allocate_temp(DtypeOf(operations_[i]), own, &value));
      OP_REQUIRES_OK(context, Run(context, {i}, values, &value));
      values[i] = std::move(value);
    }
    std::vector<int> of_the_shape;
    for (int i = 0; i < num_inputs(); ++i) {
      if (shapes[i] == shape) of_the_shape.push_back(i);
    }
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output(of_the_shape, 0, shape, &output));
    OP_REQUIRES_OK(context, Run(context, std::move(members), values, output));
  }

 private:
  absl::Status ReadStep(const std::string& serialized) {
    tensorflow::NodeDef node;
    Operation& operation = operations_.emplace_back();
    const auto kind = node.ParseFromString(serialized) ? FindElementwise(node.op()) : std::nullopt;
    if (!kind.has_value()) {
      return InvalidArgument("Expected an elementwise operation, got '", node.op(), "'.");
    }
    operation.kind = *kind;
    tensorflow::DataType dtype = tensorflow::DT_INVALID;
    TF_RETURN_IF_ERROR(GetNodeAttr(node, *kind == Elementwise::kCast ? "DstT" : "T", &dtype));
    operation.is_narrow = dtype == tensorflow::DT_BFLOAT16;
    operation.op = node.op();
    operation.name = node.name();
    const bool is_unary = *kind == Elementwise::kCast || *kind == Elementwise::kSquare ||
                          *kind == Elementwise::kRelu || *kind == Elementwise::kRelu6;
    if (is_unary != (node.input_size() == 1)) {
      return InvalidArgument("Expected other operands of ", node.op(), " than ", node.input_size(),
                             ".");
    }
    for (const std::string& text : node.input()) {
      const std::optional<Operand> operand = ParseOperand(text);
      const int step_count = static_cast<int>(operations_.size()) - 1;
      if (!operand.has_value() ||
          operand->index >= (operand->is_step ? step_count : num_inputs())) {
        return InvalidArgument("Expected an operand of a step before, got '", text, "'.");
      }
      operation.operands.push_back(operand->index + (operand->is_step ? num_inputs() : 0));
    }
    return absl::OkStatus();
  }

  static tensorflow::DataType DtypeOf(const Operation& operation) {
    return operation.is_narrow ? tensorflow::DT_BFLOAT16 : tensorflow::DT_FLOAT;
  }

  static bool MayBroadcast(const Operation& operation, const TensorShape& first,
                           const TensorShape& other) {
    if (operation.op == "AddN") return first == other;
    if (operation.op != "BiasAdd") return true;
    return other.dims() == 1 && first.dims() > 1 &&
           other.dim_size(0) == first.dim_size(first.dims() - 1);
  }

  // By operand.
  absl::Status FindShapes(const OpKernelContext& context, std::vector<TensorShape>* shapes) const {
    for (int i = 0; i < num_inputs(); ++i) shapes->push_back(context.input(i).shape());
    for (const Operation& operation : operations_) {
      TensorShape shape = (*shapes)[operation.operands[0]];
      for (size_t i = 1; i < operation.operands.size(); ++i) {
        const TensorShape& other = (*shapes)[operation.operands[i]];
        auto both = Broadcast(shape, other);
        if (both.has_value() && !MayBroadcast(operation, shape, other)) both.reset();
        if (!both.has_value()) {
          return InvalidArgument("Incompatible shapes: ", shape.DebugString(), " vs. ",
                                 other.DebugString(), " [of ", operation.op, " '", operation.name,
                                 "']");
        }
        shape = *both;
      }
      shapes->push_back(std::move(shape));
    }
    return absl::OkStatus();
  }

  // Runs operations of one shape. `values` are those of earlier operations.
  absl::Status Run(OpKernelContext* context, std::vector<int> members,
                   const std::vector<Tensor>& values, Tensor* out) const {
    const TensorShape& shape = out->shape();
    if (shape.num_elements() == 0) return absl::OkStatus();
    const Pass pass(operations_, std::move(members), num_inputs());
    const std::vector<int> reads = pass.Reads();
    std::vector<Tensor> read;
    std::vector<Form> forms;
    int images = 0;
    for (const int operand : reads) {
      const Tensor& tensor =
          operand < num_inputs() ? context->input(operand) : values[operand - num_inputs()];
      const std::optional<Form> form = FindForm(tensor.shape(), shape);
      const bool has_images = form.has_value() && form->images > 0 && form->period > 0;
      if (form.has_value() && (!has_images || images == 0 || images == form->images)) {
        if (has_images) images = form->images;
        read.push_back(tensor);
        forms.push_back(*form);
        continue;
      }
      TF_RETURN_IF_ERROR(Repeat(context, shape, &read.emplace_back(tensor)));
      forms.push_back({});
    }
    Places places;
    places.images = Product(shape, 0, images);
    places.elements = Product(shape, images, shape.dims());
    for (size_t i = 0; i < read.size(); ++i) {
      if (forms[i].period > 0 && forms[i].period < images) {  // repeats groups of images
        TF_RETURN_IF_ERROR(Repeat(context, shape, &read[i]));
        forms[i] = {};
      }
      const bool is_full = forms[i].period == 0;
      const int64_t period =
          is_full ? places.elements : Product(shape, forms[i].period, shape.dims());
      const int64_t image_size = is_full ? places.elements : forms[i].images > 0 ? period : 0;
      places.sources.push_back({MemoryOf(read[i]), image_size, period});
    }
    pass.Run(places, context, out->data());
    return absl::OkStatus();
  }

  std::vector<Operation> operations_;
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>Elementwise").Device(tensorflow::DEVICE_CPU),
                        ElementwiseKernel);

}  // namespace
}  // namespace tf_interop
