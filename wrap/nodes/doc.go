// Package nodes lets several headrooms, one on each node, run one command together. They agree
// through files in one folder on storage that all of them share: there is no server, and nothing
// listens.
//
//	Find    which node this is, and of how many, from the command and its environment
//	State   what a node says about itself; each node writes its own file, and no other
//	Member  one headroom's part: it writes its file, and reads those of others
//
// Node 0 decides. It says with which settings, and from which checkpoint, the next attempt starts
// ([Order]); when the attempt is to end on all nodes ([Ends]); and how the run has ended ([Over]).
// The others do as it says, and say how their part of each attempt ended ([Report]). An attempt
// starts on no node before every node is there.
//
// Files are replaced by renaming, so a reader sees an old one or a new one, never half of one. What is
// in them is never trusted because of its age: each start of headroom has a number drawn at random, node 0
// lists those of the nodes that it counts, and a node follows a node 0 only if its own number is
// listed. So the files of an earlier job do no harm. Whether a node is alive is judged by the reader's own clock, from
// a counter in the file that must keep changing: clocks of different nodes are never compared. No file
// is ever locked.
//
// What is decided from the states of the nodes is in judge.go, as functions of data.
package nodes
