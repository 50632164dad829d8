// What attend.cpp has for each instruction set.

#include "lanes.h"

#include "attend_body.h"
#include "gate_body.h"
#include "pair_body.h"
#include "shared_body.h"
