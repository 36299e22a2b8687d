# Finds CUPTI's headers: beside CUDA's, in the nvidia-cuda-cupti wheels, or in CUPTI_INCLUDE_DIR. With
# them, the cudnn backend's measurements name the GPU kernels that an algorithm launches. libcupti
# itself is opened at run time. Without the headers everything else is built.
#
# Sets TF_INTEROP_HAS_CUPTI and CUPTI_INCLUDE_DIR.

set(TF_INTEROP_HAS_CUPTI OFF)
if(TF_INTEROP_HAS_CUDNN)
  find_path(CUPTI_INCLUDE_DIR cupti_activity.h
    HINTS "${CUDA_INCLUDE_DIR}" "${CUDA_INCLUDE_DIR}/../extras/CUPTI/include"
    PATHS "${_site_packages}/nvidia/cuda_cupti/include" "${_site_packages}/nvidia/cu13/include"
          /usr/local/cuda/extras/CUPTI/include)
  if(CUPTI_INCLUDE_DIR)
    set(TF_INTEROP_HAS_CUPTI ON)
    message(STATUS "CUPTI headers: ${CUPTI_INCLUDE_DIR}")
  else()
    message(STATUS "CUPTI headers: none; GPU kernels are not traced")
  endif()
endif()
