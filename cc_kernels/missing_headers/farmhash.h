// TensorFlow includes this header but does not install it. Its inline functions name these.
#ifndef TF_INTEROP_MISSING_HEADERS_FARMHASH_H_
#define TF_INTEROP_MISSING_HEADERS_FARMHASH_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#define NAMESPACE_FOR_HASH_FUNCTIONS util

namespace util {

using uint128_t = std::pair<uint64_t, uint64_t>;

inline uint64_t Uint128Low64(const uint128_t& number) { return number.first; }
inline uint64_t Uint128High64(const uint128_t& number) { return number.second; }
uint32_t Fingerprint32(const char* text, size_t size);
uint64_t Fingerprint64(const char* text, size_t size);
uint128_t Fingerprint128(const char* text, size_t size);

}  // namespace util

#endif  // TF_INTEROP_MISSING_HEADERS_FARMHASH_H_
