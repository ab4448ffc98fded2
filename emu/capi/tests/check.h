/* What the C programs of the tests check with. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((unused)) static int failures;

#define SAY(condition) printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno)
/* Counts what does not hold, and goes on. */
#define CHECK(condition)                                                                    \
	do {                                                                                \
		errno = 0;                                                                  \
		if (!(condition)) {                                                         \
			SAY(condition);                                                     \
			failures++;                                                         \
		}                                                                           \
	} while (0)
#define MINUS(call, error) CHECK((call) == -1 && errno == (error))
/* What makes no sense to go on without. */
#define NEED(condition)                                                                     \
	do {                                                                                \
		errno = 0;                                                                  \
		if (!(condition)) {                                                         \
			SAY(condition);                                                     \
			exit(1);                                                            \
		}                                                                           \
	} while (0)
