// Some of the cores for the length of a run: the calling thread alone, or a group of threads.
#ifndef TF_INTEROP_TF_CORE_LEASE_H_
#define TF_INTEROP_TF_CORE_LEASE_H_

#include "tensorflow/core/framework/device_base.h"

namespace tf_interop {

// The leases of a process never ask for more than all cores together, but for what runs on the
// calling thread, which is there anyway. A group of threads is made when none of its size is free,
// and stays for later leases; so those of one size never have more threads than there are cores.
class CoreLease {
 public:
  // Leases `cores`, or the calling thread alone where not so many are left of `all_cores`, the
  // threads of the device's own pool. Never waits.
  CoreLease(int cores, int all_cores);
  ~CoreLease();
  CoreLease(const CoreLease&) = delete;
  CoreLease& operator=(const CoreLease&) = delete;

  int cores() const;

  // What kernels compute on, as a device has it. They live on, for later leases.
  tensorflow::DeviceBase::CpuWorkerThreads* threads() const;
  Eigen::ThreadPoolDevice* eigen_device() const;

 private:
  struct Workers;
  class Groups;

  Workers* const workers_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_CORE_LEASE_H_
