# What `cmake --install` makes: a folder that runs on another machine given a Python torch 2.11.0; scripts/bundle.sh
# adds the checks.
#   titan_train        start script: TITAN_LIBTORCH becomes the library path
#   lib/titan_train    the program, with run path $ORIGIN: its own folder, no path of the machine that built it
#   lib/libtitan.so    what it opens for commands that need LibTorch, training above all
#   lib/libtitan_cuda.so   what it opens where a GPU may be used, in a CUDA build
#   lib/libtitan_parquet.so   what it opens for Parquet files, in a build with TITAN_PARQUET, and Arrow: a component of its
#                             own (cmake --install … --component parquet), since Arrow doubles the size
#   lib/*.so*          the small shared libraries it needs; LibTorch, NVIDIA's and the C and C++ run-time ones stay out
#   configs/           the shipped configs
if(NOT TARGET titan)
  return()
endif()
set_target_properties(titan_train titan PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS titan_train titan RUNTIME DESTINATION lib LIBRARY DESTINATION lib)
if(TARGET titan_cuda)
  set_target_properties(titan_cuda PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS titan_cuda LIBRARY DESTINATION lib)
endif()
if(TARGET titan_parquet)
  set_target_properties(titan_parquet PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS titan_parquet LIBRARY DESTINATION lib COMPONENT parquet EXCLUDE_FROM_ALL)
  install(FILES ${TITAN_ARROW_LIBRARIES} DESTINATION lib COMPONENT parquet EXCLUDE_FROM_ALL)
endif()
install(PROGRAMS cmake/start.sh DESTINATION . RENAME titan_train)
install(DIRECTORY configs DESTINATION .)
install(FILES LICENSE DESTINATION .)

install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES
    EXECUTABLES "${CMAKE_INSTALL_PREFIX}/lib/titan_train"
    LIBRARIES "${CMAKE_INSTALL_PREFIX}/lib/libtitan.so"
    RESOLVED_DEPENDENCIES_VAR small_libraries
    UNRESOLVED_DEPENDENCIES_VAR lost_libraries
    PRE_EXCLUDE_REGEXES "^lib(torch|c10|cudart|cupti|cuda|cublas|cudnn|nccl|gomp)"
      "^ld-linux" "^lib(c|m|dl|rt|pthread|gcc_s|stdc\\+\\+)\\.so")
  if(lost_libraries)
    message(FATAL_ERROR "titan_train needs libraries that this machine lacks: ${lost_libraries}")
  endif()
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/lib" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN
    FILES ${small_libraries})
]])
