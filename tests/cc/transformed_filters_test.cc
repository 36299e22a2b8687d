// Which calls get a transformed filter.
#include "cc_kernels/core/transformed_filters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

class TransformedFiltersTest : public testing::Test {
 protected:
  std::shared_ptr<TransformedFilter> FindOrMake(const TransformedFilterKey& key, Stream stream,
                                                size_t step = 0) {
    return FindOrMake({&filter_}, key, stream, step);
  }
  std::shared_ptr<TransformedFilter> FindOrMake(const FilterAddresses& filters,
                                                const TransformedFilterKey& key, Stream stream,
                                                size_t step = 0) {
    const auto allocate = [this](size_t bytes) {
      if (!has_memory_) return FilterMemory();
      auto memory = std::make_shared<std::vector<char>>(bytes);
      allocated_.push_back(memory);
      void* const data = memory->data();
      return FilterMemory{data, std::move(memory)};
    };
    return filters_.FindOrMake(step, filters, key, 100, stream, allocate, [this](void* into) {
      if (outcome_.ok()) transformed_.push_back(into);
      return outcome_;
    });
  }
  size_t held() const {
    return std::count_if(allocated_.begin(), allocated_.end(),
                         [](const auto& each) { return !each.expired(); });
  }

  int filter_ = 0, filters_at_[2 * TransformedFilters::kMostChanges] = {};
  int first_stream_ = 0, second_stream_ = 0;
  Stream first() { return &first_stream_; }
  Stream second() { return &second_stream_; }
  HostBackend backend_;
  TransformedFilterKey key_{{}, MakeConvolution(), "BUFFERED", true, &backend_};
  TransformedFilters filters_;
  Status outcome_;                  // of transformations
  std::vector<void*> transformed_;  // their memory
  bool has_memory_ = true;
  std::vector<std::weak_ptr<std::vector<char>>> allocated_;
};

TEST_F(TransformedFiltersTest, TransformsOnTheCallersStreamOnceAndServesOthersAfterIt) {
  const int64_t counted = ReadCounters().filters_transformed;
  const auto made = FindOrMake(key_, first());
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(FindOrMake(key_, first()), made);
  EXPECT_EQ(FindOrMake(key_, second()), nullptr) << "the transformation may not have run yet";
  made->is_complete = true;
  EXPECT_EQ(FindOrMake(key_, second()), made);
  EXPECT_EQ(transformed_, std::vector<void*>{made->memory.data});
  EXPECT_EQ(ReadCounters().filters_transformed, counted + 1);
  EXPECT_EQ(allocated_[0].lock()->size(), 100u);
}

TEST_F(TransformedFiltersTest, EachKeyHasAFilterOfItsOwn) {
  HostBackend other_backend;
  std::vector<TransformedFilterKey> others(5, key_);
  others[0].convolution.batch += 1;
  others[1].algorithm = "DIRECT";
  others[2].allow_tf32 = false;
  others[3].backend = &other_backend;
  others[4].filter_channels = {6};
  for (const TransformedFilterKey& other : others) {
    TransformedFilters::GetWithoutWaiting(&backend_, [](bool) { return false; });  // gives all up
    transformed_.clear();
    const auto made = FindOrMake(key_, first());
    const auto made_for_other = FindOrMake(other, first());
    EXPECT_NE(made_for_other, made);
    EXPECT_EQ(transformed_, (std::vector<void*>{made->memory.data, made_for_other->memory.data}));
    EXPECT_EQ(FindOrMake(key_, first()), made) << "both are kept";
  }
}

TEST_F(TransformedFiltersTest, KnowsAChangedFilterByAnyOfThoseThatAreJoined) {
  constexpr int kMost = TransformedFilters::kMostChanges;
  const auto find = [this](const void* first_filter, const void* second_filter, int64_t batch) {
    TransformedFilterKey key = key_;
    key.convolution.batch = batch;
    return FindOrMake({first_filter, second_filter}, key, first());
  };
  // For another batch size the filter may be joined with others.
  for (int call = 0; call < 2 * kMost; ++call) {
    EXPECT_NE(find(&filter_, &filters_at_[call % 2], /*batch=*/1 + call % 2), nullptr);
  }
  EXPECT_EQ(transformed_.size(), 2u);
  for (int call = 0; call < kMost + 2; ++call) {
    EXPECT_EQ(find(&filter_, &filters_at_[1 + call], /*batch=*/1) == nullptr, call >= kMost - 1);
  }
  EXPECT_EQ(held(), 0u);
}

TEST_F(TransformedFiltersTest, KeepsTheLastFormsOfAFilter) {
  std::vector<TransformedFilterKey> keys(TransformedFilters::kMostForms + 1, key_);
  for (size_t i = 0; i < keys.size(); ++i) keys[i].convolution.batch = i + 1;
  for (const TransformedFilterKey& key : keys) ASSERT_NE(FindOrMake(key, first()), nullptr);
  EXPECT_TRUE(allocated_.front().expired()) << "the oldest was not dropped";
  for (size_t i = 1; i < keys.size(); ++i) EXPECT_NE(FindOrMake(keys[i], first()), nullptr);
  EXPECT_EQ(transformed_.size(), keys.size());
  // Another step's filter has its own room.
  ASSERT_NE(FindOrMake(keys[0], first(), /*step=*/3), nullptr);
  EXPECT_FALSE(allocated_[1].expired());
}

TEST_F(TransformedFiltersTest, ForgetsOneForm) {
  TransformedFilterKey other = key_;
  other.convolution.batch += 1;
  ASSERT_NE(FindOrMake(key_, first()), nullptr);
  const auto kept = FindOrMake(other, first());
  filters_.Forget(/*step=*/0, key_);
  EXPECT_TRUE(allocated_.front().expired());
  EXPECT_EQ(FindOrMake(other, first()), kept);
  filters_.Forget(/*step=*/1, key_);  // has none
}

TEST_F(TransformedFiltersTest, GoesWithoutIfMemoryIsShortOrTheTransformationFails) {
  has_memory_ = false;
  EXPECT_EQ(FindOrMake(key_, first()), nullptr);
  has_memory_ = true;
  outcome_ = Internal("no transformation today");
  EXPECT_EQ(FindOrMake(key_, first()), nullptr);
  EXPECT_EQ(CountFallbacks("no transformation today"), 1);
  EXPECT_TRUE(allocated_[0].expired());
  outcome_ = Status::Ok();
  EXPECT_NE(FindOrMake(key_, first()), nullptr);
}

TEST_F(TransformedFiltersTest, GivesItsMemoryUpBeforeAnybodyWaitsForMemory) {
  std::vector<bool> waits;
  const auto get_on_call = [&](size_t call) {
    waits.clear();
    return TransformedFilters::GetMemory(&backend_, [&waits, call](bool may_wait) {
      waits.push_back(may_wait);
      return waits.size() == call;
    });
  };
  EXPECT_TRUE(get_on_call(2));
  EXPECT_EQ(waits, (std::vector<bool>{false, true})) << "there is nothing to give up";
  auto used = FindOrMake(key_, first());
  ASSERT_NE(FindOrMake(key_, first(), /*step=*/1), nullptr);
  EXPECT_TRUE(get_on_call(1));
  EXPECT_FALSE(allocated_[1].expired());
  const int64_t given_up = CountFallbacks("gave up their transformed filters");
  EXPECT_TRUE(get_on_call(3));
  EXPECT_EQ(waits, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(CountFallbacks("gave up their transformed filters"), given_up + 1);
  EXPECT_TRUE(allocated_[1].expired());
  EXPECT_FALSE(allocated_[0].expired()) << "a filter in use was freed";
  used.reset();
  EXPECT_TRUE(allocated_[0].expired());
  EXPECT_FALSE(get_on_call(3));
}

TEST_F(TransformedFiltersTest, AllStagesOfABackendGiveTheirMemoryUpAndThoseOfOthersKeepIt) {
  HostBackend other_backend;
  TransformedFilterKey of_other_backend = key_;
  of_other_backend.backend = &other_backend;
  ASSERT_NE(FindOrMake(key_, first()), nullptr);
  ASSERT_NE(FindOrMake(of_other_backend, first(), /*step=*/1), nullptr);
  {
    const TransformedFilters gone;
  }
  const auto get_of = [](const Backend* backend) {
    int calls = 0;
    TransformedFilters::GetWithoutWaiting(backend, [&calls](bool) { return ++calls == 3; });
    return calls;
  };
  EXPECT_EQ(get_of(&backend_), 2) << "another stage's memory is freed";
  EXPECT_TRUE(allocated_[0].expired());
  EXPECT_FALSE(allocated_[1].expired());
  EXPECT_EQ(get_of(&backend_), 1) << "nothing is left";
  EXPECT_EQ(get_of(&other_backend), 2);
  EXPECT_TRUE(allocated_[1].expired());
}

}  // namespace
}  // namespace tf_interop
