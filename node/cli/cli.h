// The command line: `strata VERB OPTIONS`.
#pragma once

namespace strata {

// Parses, runs the verb and returns the exit status (exit_code.h). Errors are one line on stderr.
int RunCommandLine(int argc, char** argv);

}  // namespace strata
