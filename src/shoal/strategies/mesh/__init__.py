"""The devices of one worker as a mesh: its shape, which tensor is split over which axis, what a device holds. Pure."""
