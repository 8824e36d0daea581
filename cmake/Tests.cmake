# tests/<part>/*_test.cpp become one executable per part, <part>_test.
find_package(GTest REQUIRED)
# The one object with the checkout's path in it: in every command it would keep checkouts from sharing ccache's results.
add_library(titan_checkout OBJECT tests/support/checkout.cpp)
target_compile_definitions(titan_checkout PRIVATE TITAN_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}")
target_include_directories(titan_checkout PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/tests)
target_link_libraries(titan_checkout PRIVATE titan_compiler)

# titan_test(part libraries... [AS name]): AS gives the executable another name, where a part is tested in two builds.
function(titan_test part)
  cmake_parse_arguments(test "" "AS" "" ${ARGN})
  set(name ${part})
  if(test_AS)
    set(name ${test_AS})
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/${part}/*.cpp)
  add_executable(${name}_test ${sources})
  target_link_libraries(${name}_test PRIVATE titan_checkout ${test_UNPARSED_ARGUMENTS} GTest::gtest GTest::gtest_main)
  target_include_directories(${name}_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/tests)
  if(NOT part STREQUAL "kernels") # its files use the same names, such as cases()
    titan_compile_together(${name}_test)
  endif()
  add_test(NAME ${name} COMMAND ${name}_test WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${part})
  if(NOT TARGET ${part}_tests)
    add_custom_target(${part}_tests) # what `scripts/test.sh PART` builds
  endif()
  add_dependencies(${part}_tests ${name}_test)
endfunction()

# titan_two_shards(part [variables...]): its tests run as two processes, so that two cores share them. The second one's report
# has the program's name in a folder of its own, where reports are asked for.
function(titan_two_shards part)
  add_test(NAME ${part}_rest WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    COMMAND sh -c [=[exec "$0" "--gtest_output=${GTEST_OUTPUT:+${GTEST_OUTPUT}rest/}"]=] $<TARGET_FILE:${part}_test>)
  set_tests_properties(${part}_rest PROPERTIES LABELS ${part})
  set_tests_properties(${part} PROPERTIES COST 1000 ENVIRONMENT "GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=0;${ARGN}")
  set_tests_properties(${part}_rest PROPERTIES COST 1000 ENVIRONMENT "GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=1;${ARGN}")
endfunction()

titan_test(base titan_base)
titan_test(schedule titan_schedule)
titan_test(config titan_config)
titan_test(text titan_text)
titan_test(corpus titan_corpus)
titan_test(stream titan_stream)
foreach(part corpus stream)
  target_include_directories(${part}_test SYSTEM PRIVATE ${TITAN_XXHASH_INCLUDE})
endforeach()
if(TARGET titan_parquet)
  # The tests write the files that they read with Arrow itself; the program opens its own library, as always.
  titan_test(parquet titan_stream ${TITAN_ARROW_LIBRARIES})
  target_include_directories(parquet_test SYSTEM PRIVATE "${TITAN_ARROW_FOUND}/pyarrow/include")
  set_target_properties(parquet_test PROPERTIES BUILD_RPATH "${TITAN_ARROW_FOUND}/pyarrow")
  add_dependencies(parquet_test titan_parquet)
endif()
titan_test(plan titan_plan)
titan_test(job titan_job)
titan_test(estimate titan_estimate)
titan_test(cli titan_cli)
titan_test(structure titan_base)

# The interpreter of strangers' chat templates under AddressSanitizer and UndefinedBehaviorSanitizer.
file(GLOB jinja_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/text/chat_jinja*.cpp)
add_library(titan_jinja_checked STATIC ${jinja_sources} src/text/utf8.cpp)
target_link_libraries(titan_jinja_checked PUBLIC titan_base nlohmann_json::nlohmann_json ${TITAN_UTF8PROC})
target_compile_options(titan_jinja_checked PUBLIC -O1 -fsanitize=address,undefined -fno-sanitize-recover=all)
target_link_options(titan_jinja_checked PUBLIC -fsanitize=address,undefined)
titan_test(jinja titan_jinja_checked)

# The kernels' own sources compiled for the host: each behind the header that gives CUDA's names a meaning there.
set(host_kernels tests/support/cuda_on_host.cpp tests/support/host_machine.cpp)
file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/kernels/*.cu)
foreach(source ${kernel_sources})
  get_filename_component(kernel ${source} NAME_WE)
  file(STRINGS ${source} own_runtime REGEX "cuda_runtime\\.h") # launch.cu, which asks CUDA what became of a launch
  if(NOT own_runtime)
    set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/kernels_on_host/${kernel}.cpp)
    file(CONFIGURE OUTPUT ${wrapper} CONTENT
      "#include \"support/cuda_on_host.h\"\n#include \"src/kernels/${kernel}.cu\"\n")
    list(APPEND host_kernels ${wrapper})
  endif()
endforeach()
function(titan_host_kernels name)
  add_library(${name} STATIC ${host_kernels})
  target_link_libraries(${name} PUBLIC titan_compiler)
  target_include_directories(${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/tests)
  # "unroll" is nvcc's; a thread that has no pack leaves it unset; and GCC 12 crashes in scalar replacement of aggregates.
  target_compile_options(${name} PRIVATE -Wno-unknown-pragmas -Wno-maybe-uninitialized -fno-tree-sra -fno-ipa-sra)
endfunction()
titan_host_kernels(titan_kernels_on_host)
titan_test(kernels titan_base titan_kernels_on_host)
# The same cases on a GPU, where the build is for one.
set(gpu_machine tests/support/no_gpu_machine.cpp)
if(TITAN_WITH_CUDA)
  set(gpu_machine tests/support/gpu_machine.cu)
  target_link_libraries(kernels_test PRIVATE titan_gpu_kernels)
endif()
target_sources(kernels_test PRIVATE ${gpu_machine})

# The same tests under AddressSanitizer, which sees what a kernel reads or writes beside its arrays without load or store.
add_library(titan_address_sanitizer INTERFACE)
target_compile_options(titan_address_sanitizer INTERFACE -fsanitize=address -fno-omit-frame-pointer)
target_link_options(titan_address_sanitizer INTERFACE -fsanitize=address)
titan_host_kernels(titan_kernels_on_host_checked)
target_link_libraries(titan_kernels_on_host_checked PUBLIC titan_address_sanitizer)
titan_test(kernels titan_base titan_kernels_on_host_checked AS kernels_checked)
target_sources(kernels_checked_test PRIVATE tests/support/no_gpu_machine.cpp)

# What scripts/gpu/bench.py runs to see how fast kernels move memory; on the host it shows that it works.
add_executable(bench_kernel_rates tests/bench/kernel_rates.cpp ${gpu_machine})
target_link_libraries(bench_kernel_rates PRIVATE titan_kernels_on_host nlohmann_json::nlohmann_json)
if(TITAN_WITH_CUDA)
  target_link_libraries(bench_kernel_rates PRIVATE titan_gpu_kernels)
endif()

# What scripts/bench/data_sources.py runs; built with the tests, so that it follows the code.
add_executable(bench_token_loader tests/bench/token_loader.cpp)
target_link_libraries(bench_token_loader PRIVATE titan_stream)

# Writes damaged configs for the behaviour tests, which run titan_train on them (tests/behaviour/mutants_test.py).
add_executable(config_mutants tests/behaviour/mutants_main.cpp)
target_link_libraries(config_mutants PRIVATE titan_base)
target_include_directories(config_mutants PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/tests)

# Tests of the parts that know tensors take titan_core's precompiled header (half a gigabyte) rather than make their own.
# GCC accepts it only for the same kind of position-independent code, and an executable would get -fPIE.
function(titan_reuse_precompiled target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  target_precompile_headers(${target} REUSE_FROM titan_core)
endfunction()

set(one_thread "OMP_NUM_THREADS=1;GOMP_SPINCOUNT=3000")
function(titan_tensor_test name)
  titan_test(${name} titan_core ${ARGN})
  titan_reuse_precompiled(${name}_test)
  # Small tensors need no second thread, and OpenMP's threads spin where they share cores; tests that want two ask for them.
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${one_thread}")
endfunction()

if(TITAN_TORCH)
  foreach(part distributed model optimize checkpoint report tools)
    titan_tensor_test(${part})
  endforeach()
  foreach(part ops parallel train) # operations and whole steps on the fused kernels
    titan_tensor_test(${part} titan_kernels_on_host)
  endforeach()
  titan_two_shards(train ${one_thread})
  titan_tensor_test(app titan_app)

  # titan_train whose ranks kill themselves at exact places (tests/behaviour/dying_main.cpp, killed_ranks_test.py).
  # The linker does not see calls within one compilation: write_data and compute_time are called by files of their own
  # folders.
  set_source_files_properties(src/checkpoint/commit.cpp src/distributed/compute_time.cpp
    src/ops/matrix_product.cpp PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION ON)
  add_executable(dying_titan_train tests/behaviour/dying_main.cpp)
  target_link_libraries(dying_titan_train PRIVATE titan_app)
  target_link_options(dying_titan_train PRIVATE
    LINKER:--wrap=_ZN5titan11BatchStream4nextERKSt8functionIFbvEE
    LINKER:--wrap=_ZN5titan8Executor3runERKNS_7ProgramESt4spanIKNS_12BatchContextELm18446744073709551615EERNS_8StepWorkERKSt8functionIFvRKNS_6ActionEEE
    LINKER:--wrap=_ZNK5titan20LearningRateSchedule6factorEl
    LINKER:--wrap=_ZN5titan14make_optimizerESt6vectorIPNS_9ParameterESaIS2_EERKS0_INS_14ParameterGroupESaIS5_EERKNS_4PlanEmSt10shared_ptrINS_11HostOffloadEE
    LINKER:--wrap=_ZN5titan12compute_timeEv
    LINKER:--wrap=_ZN5titan23product_with_transposedERKN2at6TensorES3_
    LINKER:--wrap=_ZN5titan12Communicator7permuteESt6vectorIN2at6TensorESaIS3_EES5_ll
    LINKER:--wrap=_ZN5titan10write_dataERNS_7StorageERKNS_9SavePlaceElSt4spanIKNS_10SavedValueELm18446744073709551615EEmRKSt8functionIFNS_11TensorBytesEmEEl)

  # A GPU that computes nothing and counts: CUDA's runtime, cuBLAS, cuDNN and NCCL as one library, loaded before theirs
  # (tests/behaviour/mock_gpu_test.py). The names beside it are those by which LibTorch looks for the driver's libraries.
  if(TITAN_WITH_CUDA)
    file(GLOB mock_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/mock_cuda/*.cpp)
    add_library(mock_cuda SHARED ${mock_sources})
    target_include_directories(mock_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/include)
    target_include_directories(mock_cuda SYSTEM PRIVATE "${TITAN_LIBTORCH_FOUND}/nvidia/cu13/include"
      "${TITAN_LIBTORCH_FOUND}/nvidia/cudnn/include" "${TITAN_LIBTORCH_FOUND}/nvidia/nccl/include")
    foreach(folder IN LISTS CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES)
      target_compile_options(mock_cuda PRIVATE "SHELL:-idirafter \"${folder}\"")
    endforeach()
    target_link_libraries(mock_cuda PRIVATE titan_compiler nlohmann_json::nlohmann_json ${CMAKE_DL_LIBS})
    set_target_properties(mock_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/mock_cuda)
    foreach(name libcuda.so.1 libnvidia-ml.so.1)
      add_custom_command(TARGET mock_cuda POST_BUILD
        COMMAND ${CMAKE_COMMAND} -E create_symlink libmock_cuda.so ${CMAKE_BINARY_DIR}/mock_cuda/${name})
    endforeach()
  endif()

  # What scripts/bench runs; built with the tests, so that they follow the code.
  foreach(bench ring_attention checkpoint device_ceiling muon control_plane)
    add_executable(bench_${bench} tests/bench/${bench}.cpp)
    target_link_libraries(bench_${bench} PRIVATE titan_core)
    target_include_directories(bench_${bench} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/tests)
    titan_reuse_precompiled(bench_${bench})
  endforeach()

  # Writes and reads checkpoints for the comparison with Python's (tests/reference/checkpoint_test.py).
  add_executable(checkpoint_files tests/reference/checkpoint_main.cpp tests/checkpoint/states.cpp)
  target_link_libraries(checkpoint_files PRIVATE titan_core GTest::gtest)
  target_include_directories(checkpoint_files PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/tests)
  titan_reuse_precompiled(checkpoint_files)
endif()

# Renders chat templates for the comparison with Jinja (tests/reference/jinja_test.py).
add_executable(render_templates tests/reference/jinja_main.cpp)
target_link_libraries(render_templates PRIVATE titan_text)
target_include_directories(render_templates PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/tests)

# Writes samples in Megatron-LM's order for the comparison with its datasets (tests/reference/megatron_order_test.py).
add_executable(megatron_samples tests/reference/megatron_main.cpp)
target_link_libraries(megatron_samples PRIVATE titan_stream)
target_include_directories(megatron_samples PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})

# What the Python tests start.
add_custom_target(python_tests DEPENDS config_mutants render_templates megatron_samples)
if(TITAN_TORCH)
  add_dependencies(python_tests titan_program dying_titan_train checkpoint_files bench_device_ceiling bench_kernel_rates
    bench_control_plane)
  if(TITAN_WITH_CUDA)
    add_dependencies(python_tests mock_cuda)
  endif()
endif()
