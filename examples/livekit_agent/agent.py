"""A LiveKit agent with a face, for a real LiveKit server.

    export LIVEKIT_URL=... LIVEKIT_API_KEY=... LIVEKIT_API_SECRET=...
    python examples/livekit_agent/agent.py dev

As it is it needs no account for speech or language: it hums what it was told to say. The comments
name what to put in their place.
"""

from livekit.agents import Agent, AgentServer, AgentSession, JobContext, cli

from livekit.plugins import talking_avatar
from livekit.plugins.talking_avatar.testing import ScriptedLLM, ScriptedSTT, ToneTTS
from talking_avatar.assets import portrait_path

server = AgentServer()


@server.rtc_session()
async def entrypoint(ctx: JobContext) -> None:
    session = AgentSession(
        stt=ScriptedSTT(),  # or "deepgram/nova-3"
        llm=ScriptedLLM(["Hello there, I am a photograph."]),  # or "openai/gpt-4.1-mini"
        tts=ToneTTS(),  # or "cartesia/sonic-3"
        vad=None,  # or leave it out
    )
    avatar = talking_avatar.AvatarSession(photo=portrait_path())  # or "face.jpg"
    await avatar.start(session, room=ctx.room)
    await session.start(agent=Agent(instructions="Be brief."), room=ctx.room)
    await session.generate_reply(user_input="Hello?")
    print(f"{avatar.stats().num_frames} frames, {avatar.gpu_hours():.4f} GPU-hours")


if __name__ == "__main__":
    cli.run_app(server)
