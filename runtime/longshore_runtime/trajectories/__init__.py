"""What engines sample and trainers train on."""
