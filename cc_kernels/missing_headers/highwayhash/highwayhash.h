// TensorFlow includes this header but does not install it. A class that we never make names these.
#ifndef TF_INTEROP_MISSING_HEADERS_HIGHWAYHASH_H_
#define TF_INTEROP_MISSING_HEADERS_HIGHWAYHASH_H_

#define HH_TARGET_PREFERRED 0

namespace highwayhash {

template <int target>
class HighwayHashCatT {};

}  // namespace highwayhash

#endif  // TF_INTEROP_MISSING_HEADERS_HIGHWAYHASH_H_
