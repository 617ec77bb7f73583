# The files that a distribution's package has, relative to its prefix.

install(TARGETS strata DESTINATION bin)
install(FILES models/strata-demo.gguf DESTINATION share/strata)
file(GLOB pages ${PROJECT_SOURCE_DIR}/*.md)
install(FILES ${pages} LICENSE DESTINATION share/doc/strata)

# The program writes its own man pages and completions, and the unit, which has the final prefix.
set(folder ${PROJECT_BINARY_DIR}/reference)
install(CODE "
  execute_process(COMMAND ${CMAKE_COMMAND} -E rm -rf ${folder} COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/reference $<TARGET_FILE:strata> ${folder}/share COMMAND_ERROR_IS_FATAL ANY)")
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  install(CODE "
    file(MAKE_DIRECTORY ${folder}/lib/systemd/system)
    execute_process(COMMAND $<TARGET_FILE:strata> reference unit \${CMAKE_INSTALL_PREFIX}/bin/strata
      OUTPUT_FILE ${folder}/lib/systemd/system/strata.service COMMAND_ERROR_IS_FATAL ANY)")
endif()
install(DIRECTORY ${folder}/ DESTINATION .)
