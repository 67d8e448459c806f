"""Operations as pages show them: forms, restore targets, steps, effects and results."""
