#include "cc_kernels/core/cudnn/serialized_convolution.h"

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "cc_kernels/core/cudnn/cudnn_library.h"

namespace tf_interop {
namespace {

// The text is a list of fields, one to a line: a name, a blank, and the value. A plan's value is
// its number of bytes, and the plan follows on lines of its own.
//
//   tf_interop_cudnn_convolution 1
//   checksum 0123456789abcdef           of everything behind this line
//   cudnn 90300
//   convolution forward float NHWC ...
//   algorithm split+eng4_k2=1
//   plan 123
//   {...}
constexpr std::string_view kFormat = "tf_interop_cudnn_convolution";
constexpr std::string_view kVersion = "1";

// Tells damage from a sound text, not an attack (64-bit FNV-1a).
std::string Checksum(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

void WriteField(std::string_view name, std::string_view value, std::string* text) {
  text->append(name).append(" ").append(value).append("\n");
}

// Reads fields in the order in which they were written.
class FieldReader {
 public:
  explicit FieldReader(std::string_view text) : rest_(text) {}

  Status ReadField(std::string_view name, std::string_view* value) {
    const size_t end = rest_.find('\n');
    if (end == std::string_view::npos || rest_.substr(0, name.size()) != name ||
        rest_.substr(name.size(), 1) != " ") {
      return Damaged("a line '" + std::string(name) + " ...'");
    }
    *value = rest_.substr(name.size() + 1, end - name.size() - 1);
    rest_.remove_prefix(end + 1);
    return Status::Ok();
  }

  Status ReadNumber(std::string_view name, size_t* number) {
    std::string_view value;
    TF_INTEROP_RETURN_IF_ERROR(ReadField(name, &value));
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *number);
    if (error == std::errc() && end == value.data() + value.size()) return Status::Ok();
    return Damaged("a number behind '" + std::string(name) + "'");
  }

  Status ReadPlan(std::string* plan) {
    size_t bytes = 0;
    TF_INTEROP_RETURN_IF_ERROR(ReadNumber("plan", &bytes));
    if (rest_.empty() || bytes > rest_.size() - 1 || rest_[bytes] != '\n') {
      return Damaged("a plan of " + std::to_string(bytes) + " bytes");
    }
    plan->assign(rest_.substr(0, bytes));
    rest_.remove_prefix(bytes + 1);
    return Status::Ok();
  }

  std::string_view rest() const { return rest_; }

  Status Damaged(const std::string& expected) const {
    return InvalidArgument("Expected " + expected + " in a serialized convolution, got '" +
                           std::string(rest_.substr(0, 40)) +
                           "'. The text is damaged; prepare the algorithm by its name.");
  }

 private:
  std::string_view rest_;
};

}  // namespace

std::string DescribeExactly(const Convolution& convolution) {
  // The text leaves out what messages need not say, the slope of an activation for one.
  char hash[32];
  std::snprintf(hash, sizeof(hash), " #%016zx", ConvolutionHash()(convolution));
  return ToString(convolution) + hash;
}

std::string WriteSerialized(const SerializedConvolution& serialized) {
  std::string body;
  WriteField("cudnn", std::to_string(serialized.cudnn_version), &body);
  WriteField("convolution", serialized.convolution, &body);
  WriteField("algorithm", serialized.algorithm, &body);
  for (const std::string& plan : serialized.plans) {
    WriteField("plan", std::to_string(plan.size()), &body);
    body.append(plan).append("\n");
  }
  std::string text;
  WriteField(kFormat, kVersion, &text);
  WriteField("checksum", Checksum(body), &text);
  return text + body;
}

Status ReadSerialized(const std::string& text, SerializedConvolution* serialized) {
  FieldReader reader(text);
  std::string_view version, checksum, convolution, algorithm;
  TF_INTEROP_RETURN_IF_ERROR(reader.ReadField(kFormat, &version));
  if (version != kVersion) {
    return Unsupported("Expected version " + std::string(kVersion) +
                       " of a serialized convolution, got '" + std::string(version) +
                       "'. Prepare the algorithm by its name.");
  }
  TF_INTEROP_RETURN_IF_ERROR(reader.ReadField("checksum", &checksum));
  if (checksum != Checksum(reader.rest())) {
    return InvalidArgument("Expected a serialized convolution with checksum " +
                           std::string(checksum) + ", got " + Checksum(reader.rest()) +
                           ". The text is damaged; prepare the algorithm by its name.");
  }
  SerializedConvolution read;
  TF_INTEROP_RETURN_IF_ERROR(reader.ReadNumber("cudnn", &read.cudnn_version));
  TF_INTEROP_RETURN_IF_ERROR(reader.ReadField("convolution", &convolution));
  TF_INTEROP_RETURN_IF_ERROR(reader.ReadField("algorithm", &algorithm));
  read.convolution = convolution;
  read.algorithm = algorithm;
  while (!reader.rest().empty()) {
    TF_INTEROP_RETURN_IF_ERROR(reader.ReadPlan(&read.plans.emplace_back()));
  }
  *serialized = std::move(read);
  return Status::Ok();
}

Status CheckOfSameOrigin(const SerializedConvolution& serialized, const Convolution& convolution,
                         size_t cudnn_version) {
  if (serialized.cudnn_version != cudnn_version) {
    return Unsupported("Expected '" + serialized.algorithm + "' serialized by cuDNN " +
                       CudnnVersionText(cudnn_version) + ", got one by cuDNN " +
                       CudnnVersionText(serialized.cudnn_version) +
                       ". Prepare the algorithm by its name.");
  }
  if (serialized.convolution != DescribeExactly(convolution)) {
    return Unsupported("Expected '" + serialized.algorithm + "' serialized for " +
                       DescribeExactly(convolution) + ", got one for " + serialized.convolution +
                       ".");
  }
  return Status::Ok();
}

}  // namespace tf_interop
