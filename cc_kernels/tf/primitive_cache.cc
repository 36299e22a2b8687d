#include "cc_kernels/tf/primitive_cache.h"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <list>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/public/version.h"

namespace tf_interop {

// The part of TensorFlow's MklPrimitive that is needed to destroy one: the destructor, its first
// virtual function. In the unnamed namespace the compiler would know that no class derives from
// this, and would not call TensorFlow's destructor.
struct Primitive {  // NOLINT(misc-use-internal-linkage)
  virtual ~Primitive() = 0;
};

namespace {

template <typename Value>
#if TF_GRAPH_DEF_VERSION <= 2288  // TensorFlow 2.20
using Map = std::unordered_map<std::string, Value>;
#else
using Map = absl::flat_hash_map<std::string, Value>;
#endif

// The layout of TensorFlow's LRUCache<MklPrimitive>. Its header, mkl_util.h, compiles only with the
// settings of TensorFlow's own build.
struct Cache {
  struct Entry {
    Primitive* primitive;
    std::list<std::string>::iterator position;
    Entry(Entry&& other) noexcept
        : primitive(std::exchange(other.primitive, nullptr)), position(other.position) {}
    ~Entry() { delete primitive; }
  };

  size_t capacity = 0;
  Map<Entry> entries;
  std::list<std::string> keys;
};

// One of TensorFlow's factories, with the mangled name of its element type.
struct Factory {
  tensorflow::DataType dtype;
  const char* mangled_type;
};
constexpr std::array<Factory, 5> kFactories = {{{tensorflow::DT_FLOAT, "f"},
                                                {tensorflow::DT_BFLOAT16, "N5Eigen8bfloat16E"},
                                                {tensorflow::DT_HALF, "N5Eigen4halfE"},
                                                {tensorflow::DT_QINT8, "N5Eigen5QInt8E"},
                                                {tensorflow::DT_QUINT8, "N5Eigen6QUInt8E"}}};

void* FindSymbol(const Factory& factory, const char* prefix, const char* suffix) {
  const std::string name =
      absl::StrCat(prefix, "N10tensorflow19MklPrimitiveFactoryI", factory.mangled_type, suffix);
  return dlsym(RTLD_DEFAULT, name.c_str());
}

// Returns the calling thread's cache, or null if this TensorFlow has none. The cache is a static
// variable of a function. TensorFlow's library exports it, so its address is found by name.
Cache* FindWideCache(const Factory& factory) {
  using GetOp = void* (*)(void* factory, const std::string& key);
  const auto get_op = reinterpret_cast<GetOp>(
      FindSymbol(factory, "_Z", "E5GetOpERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"));
  auto* const cache =
      static_cast<Cache*>(FindSymbol(factory, "_ZZ", "E11GetLRUCacheEvE10lru_cache_"));
  if (get_op == nullptr || cache == nullptr) return nullptr;
  // A look-up creates the thread's cache if there is none yet. Factories have no members.
  get_op(nullptr, "");
  return cache;
}

// A thread's caches for one element type.
struct ThreadCache {
  Cache* wide = nullptr;
  std::map<int, Cache> narrow;  // by the number of cores
};

void Swap(tensorflow::DataType dtype, int cores) {
  thread_local std::array<ThreadCache, kFactories.size()> caches;
  size_t i = 0;
  while (kFactories[i].dtype != dtype) ++i;
  ThreadCache* const cache = &caches[i];
  if (cache->wide == nullptr) cache->wide = FindWideCache(kFactories[i]);
  const auto [narrow, is_new] = cache->narrow.try_emplace(cores);
  if (is_new) narrow->second.capacity = cache->wide->capacity;
  std::swap(*cache->wide, narrow->second);
}

}  // namespace

std::vector<tensorflow::DataType> PrimitiveCacheTypes(
    absl::Span<const tensorflow::DataType> dtypes) {
  std::vector<tensorflow::DataType> types;
  if (dtypes.empty()) return types;
  for (const Factory& factory : kFactories) {
    const bool is_used =
        factory.dtype == tensorflow::DT_FLOAT || absl::c_linear_search(dtypes, factory.dtype);
    if (is_used && FindWideCache(factory) != nullptr) types.push_back(factory.dtype);
  }
  return types;
}

NarrowPrimitives::NarrowPrimitives(absl::Span<const tensorflow::DataType> types, int cores)
    : types_(types), cores_(cores) {
  for (const tensorflow::DataType type : types_) Swap(type, cores_);
}

NarrowPrimitives::~NarrowPrimitives() {
  for (const tensorflow::DataType type : types_) Swap(type, cores_);
}

}  // namespace tf_interop
