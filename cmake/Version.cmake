# What `titan_train --version` says. Included: a target that writes the commit into a header when it has changed. As a
# script (cmake -P): does that.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(TITAN_GENERATED ${CMAKE_CURRENT_BINARY_DIR}/generated)
  add_custom_target(titan_commit
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR} -DOUTPUT=${TITAN_GENERATED}/titan_commit.h
      -P ${CMAKE_CURRENT_LIST_FILE}
    BYPRODUCTS ${TITAN_GENERATED}/titan_commit.h VERBATIM)
  return()
endif()
set(commit unknown)
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE} describe --always --abbrev=12 --dirty --exclude *
    RESULT_VARIABLE failed OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    set(commit ${found})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define TITAN_COMMIT \"${commit}\"\n")
