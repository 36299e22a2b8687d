# Finds the headers of CUDA's driver API and of cuDNN 9: in TensorFlow's own include folder, in the
# nvidia-cudnn wheels, or in CUDA_INCLUDE_DIR and CUDNN_INCLUDE_DIR. No library is linked; libcuda and
# libcudnn are opened at run time.
#
# Sets TF_INTEROP_HAS_CUDNN, CUDA_INCLUDE_DIR and CUDNN_INCLUDE_DIR.

execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import sysconfig; print(sysconfig.get_path('purelib'), end='')"
  OUTPUT_VARIABLE _site_packages)
find_path(CUDA_INCLUDE_DIR cuda.h
  HINTS "${TENSORFLOW_INCLUDE_DIR}/third_party/gpus/cuda/include"
  PATHS /usr/local/cuda/include "${_site_packages}/nvidia/cuda_runtime/include"
        "${_site_packages}/nvidia/cu13/include")
find_path(CUDNN_INCLUDE_DIR cudnn_graph.h
  HINTS "${TENSORFLOW_INCLUDE_DIR}/third_party/gpus/cudnn/include"
        "${_site_packages}/nvidia/cudnn/include"
  PATHS /usr/local/cuda/include /usr/include)

if(TF_INTEROP_CUDNN_BACKEND STREQUAL "off")
  set(TF_INTEROP_HAS_CUDNN OFF)
elseif(CUDA_INCLUDE_DIR AND CUDNN_INCLUDE_DIR)
  set(TF_INTEROP_HAS_CUDNN ON)
  message(STATUS "CUDA headers: ${CUDA_INCLUDE_DIR}; cuDNN headers: ${CUDNN_INCLUDE_DIR}")
else()
  set(TF_INTEROP_HAS_CUDNN OFF)
  set(_missing "CUDA headers (${CUDA_INCLUDE_DIR}) or cuDNN headers (${CUDNN_INCLUDE_DIR}) not found. "
               "Install them with 'pip install nvidia-cudnn-cu12', or set CUDA_INCLUDE_DIR and "
               "CUDNN_INCLUDE_DIR to their folders.")
  if(TF_INTEROP_CUDNN_BACKEND STREQUAL "on")
    message(FATAL_ERROR ${_missing})
  endif()
  message(WARNING ${_missing} " Building only the host backend: stages will run only on CPUs.")
endif()
