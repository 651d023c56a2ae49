// Package recovery decides what a training job does when it runs out of memory,
// and when it may use more again. It is pure: data in, data out, no clock, no
// I/O, no logging. Start with [Decide]. The other types are its input and output:
//
//	Plan      how an effective batch is cut into micro-batches
//	Policy    what the user allows, and what the body can carry out
//	History   what is known of the run so far; a value
//	Event     something that happened
//	Decision  what to do about it
package recovery
