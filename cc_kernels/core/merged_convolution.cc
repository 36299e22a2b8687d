#include "cc_kernels/core/merged_convolution.h"

#include <cstdint>
#include <limits>

namespace tf_interop {
namespace {

// TensorFlow's GPU allocator aligns to this, and an algorithm may depend on it.
constexpr size_t kAlignment = 256;

// CUDA's largest pitch (CU_DEVICE_ATTRIBUTE_MAX_PITCH of every GPU).
constexpr size_t kMostRowBytes = std::numeric_limits<int32_t>::max();

constexpr int kImageInput = 0, kFilterInput = 1, kBiasInput = 2;

size_t Align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Status CheckPart(const Convolution& part, const Convolution& first) {
  if (part.kind != ConvolutionKind::kForward || part.group_count != 1) {
    return Unsupported("Expected forward convolutions without groups to merge, got " +
                       ToString(part) + ".");
  }
  Convolution as_wide_as_first = part;
  as_wide_as_first.output_channels = first.output_channels;
  if (as_wide_as_first == first) return Status::Ok();
  return Unsupported(
      "Expected a merged lane's convolutions to differ only in output channels, got " +
      ToString(first) + " and " + ToString(part) + ".");
}

// Appends a tensor to the workspace.
Status AddJoined(const std::vector<int64_t>& part_row_elements, size_t rows, DataType dtype,
                 size_t* workspace_bytes, JoinedTensor* tensor) {
  tensor->workspace_offset = *workspace_bytes;
  tensor->rows = rows;
  for (const int64_t elements : part_row_elements) {
    tensor->part_row_bytes.push_back(static_cast<size_t>(elements) * SizeOf(dtype));
    tensor->row_bytes += tensor->part_row_bytes.back();
  }
  if (tensor->row_bytes > kMostRowBytes) {
    return Unsupported("Expected rows of at most " + std::to_string(kMostRowBytes) +
                       " bytes to merge, got " + std::to_string(tensor->row_bytes) + ".");
  }
  *workspace_bytes += Align(tensor->bytes());
  return Status::Ok();
}

unsigned char* At(void* data, size_t offset) { return static_cast<unsigned char*>(data) + offset; }

// Calls copy(part, its address in `joined`, its row bytes) for each part of a tensor.
template <typename Copy>
Status ForEachPart(const JoinedTensor& tensor, void* joined, const Copy& copy) {
  size_t offset = 0;
  for (size_t i = 0; i < tensor.part_row_bytes.size(); ++i) {
    const size_t row_bytes = tensor.part_row_bytes[i];
    TF_INTEROP_RETURN_IF_ERROR(copy(i, At(joined, offset), row_bytes));
    offset += row_bytes;
  }
  return Status::Ok();
}

// Writes the parts side by side to `joined`; part i is at part_at(i).
template <typename PartAt>
Status Join(Backend* backend, const JoinedTensor& tensor, const PartAt& part_at, void* joined,
            Stream stream) {
  return ForEachPart(tensor, joined, [&](size_t i, void* place, size_t row_bytes) {
    return backend->CopyRows(part_at(i), row_bytes, place, tensor.row_bytes, row_bytes, tensor.rows,
                             stream);
  });
}

// Describes `parts` as one convolution.
Status Merge(const std::vector<Convolution>& parts, PreparedMerge* merged) {
  if (parts.size() < 2) {
    return Unsupported("Expected two or more convolutions to merge, got " +
                       std::to_string(parts.size()) + ".");
  }
  Convolution& wide = merged->wide;
  wide = parts[0];
  wide.output_channels = 0;
  std::vector<int64_t> channels, output_row_elements;
  for (const Convolution& part : parts) {
    TF_INTEROP_RETURN_IF_ERROR(CheckPart(part, parts[0]));
    wide.output_channels += part.output_channels;
    channels.push_back(part.output_channels);
    output_row_elements.push_back(part.layout == Layout::kNHWC
                                      ? part.output_channels
                                      : part.output_pixels() * part.output_channels);
  }
  const Status valid = Validate(wide);
  if (!valid.ok()) return Unsupported(valid.message());

  const int64_t filter_rows = wide.taps() * wide.image_channels;
  const int64_t output_rows =
      wide.layout == Layout::kNHWC ? wide.batch * wide.output_pixels() : wide.batch;
  size_t* const bytes = &merged->joined_bytes;
  TF_INTEROP_RETURN_IF_ERROR(AddJoined(channels, filter_rows, wide.dtype, bytes, &merged->filter));
  TF_INTEROP_RETURN_IF_ERROR(
      AddJoined(channels, wide.has_bias ? 1 : 0, wide.dtype, bytes, &merged->bias));
  return AddJoined(output_row_elements, output_rows, wide.dtype, bytes, &merged->output);
}

}  // namespace

size_t PreparedMerge::joined_filter_bytes() const {
  const size_t transformed = convolution->transformed_filter_bytes();
  return transformed > 0 ? transformed : filter.bytes();
}

Status PrepareMerge(Backend* backend, const std::vector<Convolution>& parts,
                    const std::vector<std::string>& algorithms, const PrepareOptions& options,
                    PreparedMerge* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(Merge(parts, prepared));
  const std::string& algorithm = algorithms.front();
  for (const std::string& other : algorithms) {
    if (other == algorithm) continue;
    return Unsupported("Expected one algorithm for convolutions to merge, got '" + algorithm +
                       "' and '" + other + "'.");
  }
  const size_t joined_bytes = prepared->joined_bytes;
  const size_t workspace_limit_bytes = options.workspace_limit_bytes;
  if (joined_bytes <= workspace_limit_bytes) {
    PrepareOptions of_wide = options;
    of_wide.workspace_limit_bytes -= joined_bytes;
    TF_INTEROP_RETURN_IF_ERROR(
        backend->Prepare(prepared->wide, algorithm, of_wide, &prepared->convolution));
    // The backend's own choice may exceed a limit that is too small for all algorithms.
    if (prepared->workspace_bytes() <= workspace_limit_bytes) return Status::Ok();
  }
  return Unsupported("Joined filters and outputs take " + std::to_string(joined_bytes) +
                     " bytes of workspace, which leaves too little of the limit of " +
                     std::to_string(workspace_limit_bytes) + ".");
}

Status EnqueueJoinedFilter(Backend* backend, const PreparedMerge& prepared,
                           const std::vector<const void*>& filters, void* workspace, void* joined,
                           Stream stream) {
  const JoinedTensor& filter = prepared.filter;
  const auto filter_at = [&filters](size_t i) { return filters[i]; };
  if (prepared.convolution->transformed_filter_bytes() == 0) {
    return Join(backend, filter, filter_at, joined, stream);
  }
  void* const joined_first = At(workspace, filter.workspace_offset);
  TF_INTEROP_RETURN_IF_ERROR(Join(backend, filter, filter_at, joined_first, stream));
  return backend->TransformFilter(*prepared.convolution, joined_first, joined, stream);
}

Status LaunchMerge(Backend* backend, const PreparedMerge& prepared,
                   const std::vector<ConvolutionBuffers>& buffers, const std::vector<size_t>& steps,
                   const void* joined_filter, void* workspace, Stream stream) {
  const auto input_at = [&](int input) {
    return [&buffers, &steps, input](size_t i) { return buffers[steps[i]].inputs[input]; };
  };
  ConvolutionBuffers wide;
  wide.inputs[kImageInput] = buffers[steps[0]].inputs[kImageInput];
  wide.result = At(workspace, prepared.output.workspace_offset);
  if (joined_filter == nullptr) {
    void* const filter = At(workspace, prepared.filter.workspace_offset);
    TF_INTEROP_RETURN_IF_ERROR(
        Join(backend, prepared.filter, input_at(kFilterInput), filter, stream));
    wide.inputs[kFilterInput] = filter;
  } else if (prepared.convolution->transformed_filter_bytes() > 0) {
    wide.transformed_filter = joined_filter;
  } else {
    wide.inputs[kFilterInput] = joined_filter;
  }
  if (prepared.wide.has_bias) {
    void* const bias = At(workspace, prepared.bias.workspace_offset);
    TF_INTEROP_RETURN_IF_ERROR(Join(backend, prepared.bias, input_at(kBiasInput), bias, stream));
    wide.inputs[kBiasInput] = bias;
  }
  TF_INTEROP_RETURN_IF_ERROR(
      backend->Launch(*prepared.convolution, wide, At(workspace, prepared.joined_bytes), stream));
  return ForEachPart(prepared.output, wide.result, [&](size_t i, void* place, size_t row_bytes) {
    return backend->CopyRows(place, prepared.output.row_bytes, buffers[steps[i]].result, row_bytes,
                             row_bytes, prepared.output.rows, stream);
  });
}

}  // namespace tf_interop
