// SPDX-License-Identifier: Apache-2.0
/*
 * Slots that are filled with tiles: jobs of groups with a codec, whose pages are converted on
 * the GPU between their memory and the staging buffer. That holds the objects' bytes; copies
 * of the driver's take them over the bus.
 *
 * A page that fits lies in the buffer as in the object, so that neighbours make one copy. Of
 * one that does not fit, part of its codes and the scales of these lie there, apart. The
 * lane's thread, under its lock.
 */
#pragma once

#include "cuda/lane.h"

/* As much as the slot takes of @task. True when all of it is in slots. */
bool tiles_put(struct lane *lane, struct lane_slot *slot, struct lane_task *task);
