"""A taskset for verifiers 0.4: guess a number, which is higher or lower."""

import verifiers.v1 as vf


class HigherData(vf.TaskData):
    secret: int


class HigherConfig(vf.TasksetConfig):
    most: int = 9


class HigherTask(vf.Task[HigherData, vf.State, vf.TaskConfig]):
    pass


class HigherEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class HigherEnv(vf.Env[HigherEnvConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while int(segment.last_reply) != task.data.secret:
                hint = "higher" if int(segment.last_reply) < task.data.secret else "lower"
                segment = await interaction.turn(hint)
        interaction.trace.record_reward("won", 1.0)


class HigherTaskset(vf.Taskset[HigherTask, HigherConfig]):
    def load(self):
        for secret in range(self.config.most + 1):
            yield HigherTask(HigherData(prompt=f"0 to {self.config.most}?", secret=secret), self.config.task)


__all__ = ["HigherEnv", "HigherTaskset"]
